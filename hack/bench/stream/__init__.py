"""Gangs that trickle in, on a real kube-scheduler."""
