"""Memory checkpoints as values: what is saved, where it lies, and which copy may be restored."""
