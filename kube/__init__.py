"""The wire: raw Kubernetes objects, free room on nodes, list-watch and the Lease."""
