"""The programs of the control plane as Go tools: the list of them, their build, and their place in the cache."""
