"""Copies of shards in the memory of other workers: sent from keeper to keeper, kept, given to who needs them."""
