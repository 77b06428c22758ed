"""Checkpoints in storage: written beside the training, committed by one file."""
