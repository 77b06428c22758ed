"""The controllers of a local cluster as pure functions: from the objects that exist to the writes that a job needs."""
