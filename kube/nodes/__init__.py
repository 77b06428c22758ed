"""What pods and nodes bear about a node's health."""
