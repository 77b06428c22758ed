"""The page of the cluster in a browser: GPUs and their holders, jobs that wait and why, and decisions."""
