"""Replicates shards in the memory of other workers: daemons send them, keep them, and return them after a loss."""
