"""The rim of the yard: list-watch, the extender over HTTP, bindings."""
