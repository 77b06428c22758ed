"""Stack traces of all ranks: read from tools, merged into one tree, and reported."""
