"""Saves and loads the state of a training process: torch tensors on one side, an arena in shared memory on
the other.
"""
