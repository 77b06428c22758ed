"""Text to training data: documents become Megatron's indexed datasets, on one machine or on Spark."""
