"""Answers for machines (JSON) and for people (tables); nothing here prints."""
