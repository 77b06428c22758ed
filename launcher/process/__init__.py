"""What one training process is, as values: its orders, its environment, its outputs, its CPUs, and how it ended."""
