"""Steps and runs, event by event: judges of the closed forms, and answers in their own right.

Nothing here uses the formulas of `costmodel` for pipelines, bubbles, microbatches in flight or
expected wall times. Durations of single operations come from its terms. The package stands at the
front door because it reads the cost model from outside, as a user does: nothing below needs it.
"""
