"""The launcher: one agent in each worker pod forms the world, starts the training processes and survives losses."""
