"""Scenarios that strike kinds of faults without a training job, each with real parts and invariants of its own."""
