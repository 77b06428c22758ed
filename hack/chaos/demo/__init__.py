"""`make demo-train`: a training job on the yard grows, gives way, is struck, and ends as if nothing had been."""
