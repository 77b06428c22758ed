"""Makes Prometheus' rules and their runbooks from tables."""
