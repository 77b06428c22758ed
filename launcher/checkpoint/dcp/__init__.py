"""Connects torch.distributed.checkpoint to our memory and storage: a writer, a reader, and their metadata."""
