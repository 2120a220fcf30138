"""From what a person writes to a question: numbers, layouts, limits, defaults and their reasons."""
