"""The only room of `kube` that touches network, clock and logs: the API client, list-watch, the Lease."""
