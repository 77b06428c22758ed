"""A real Kubernetes control plane on loopback, built from Go modules. It ends with the process that started it."""
