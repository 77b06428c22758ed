"""Wishes within a gang: runs of ranks in runs of ranks, even shares, axes of parallelism. Pure, as all of topology."""
