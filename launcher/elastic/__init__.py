"""Helpers that a training script imports: steps, samples, batches and learning rates for a world that changes size."""
