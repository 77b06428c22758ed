"""Scenarios that strike kinds of faults without a training job: each with real parts, a seed, and its own invariants."""
