"""A full-size autoscaler, fed as by an API server, and the cost of its looks."""
