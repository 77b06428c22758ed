"""Replay of job streams: the lender's real decisions on a cluster that exists only in numbers."""
