"""Schedulers: what is free, how a job is submitted, what a running job finds out."""
