"""Memory that outlives the training processes, and the process that looks after it."""
