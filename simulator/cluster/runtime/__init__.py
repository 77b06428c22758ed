"""The I/O of the local cluster: list-watch, the extender over HTTP, bindings."""
