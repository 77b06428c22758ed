"""Replay of job streams: the autoscaler's real decisions on a cluster that exists only in numbers."""
