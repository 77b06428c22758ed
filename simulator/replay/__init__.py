"""Replay streams of jobs: the autoscaler's real decisions on a cluster that exists only in numbers."""
