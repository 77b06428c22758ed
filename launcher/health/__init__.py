"""Node checks and hang detection: which groups to probe, what results prove, and which ranks block a hung job."""
