"""What joins a training script to the launcher: when gradients are synchronised, what can be resized, which torch."""
