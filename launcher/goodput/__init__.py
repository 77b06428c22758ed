"""Measures a job's goodput: how much of its wall time was training whose result was preserved."""
