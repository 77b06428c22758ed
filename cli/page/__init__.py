"""The page of the cluster: who holds which GPUs, who waits and why, and what was decided."""
