"""Meshes of parallelism: what ours send between leaves, beside a ring, DLRover's re-rank and a search by annealing."""
