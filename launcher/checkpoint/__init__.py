"""Memory checkpoints: their formats, the processes that keep them, replication between workers, and storage."""
