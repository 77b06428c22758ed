"""Shared memory that outlives the training processes: arenas, their pages, and copies into them."""
