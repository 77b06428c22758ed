"""A real Kubernetes control plane on loopback: built from declared Go tools, started and ended with its user."""
