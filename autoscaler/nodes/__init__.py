"""Which nodes are tainted, since pods have proven them faulty."""
