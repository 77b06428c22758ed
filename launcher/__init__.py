"""The shepherd: in every worker pod, it forms the world, starts the training processes, and survives losing anyone."""
