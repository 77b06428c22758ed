"""Gangs on a real kube-scheduler: beside default scheduling, best fit in memory, and Kueue."""
