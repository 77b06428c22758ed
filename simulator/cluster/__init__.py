"""What acts on the objects: a scheduler loop, and a kubelet as a table."""
