"""The active parts of a local cluster: a scheduler loop, controllers, and a kubelet that follows a table."""
