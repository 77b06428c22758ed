"""Reads the jobs and queues that people submit, in every dialect, as a few nouns. Pure."""
