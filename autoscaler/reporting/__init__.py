"""Decisions as words and sentences, the decision log, and when waiting jobs may start."""
