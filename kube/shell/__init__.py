"""The only room of `kube` that touches network, clock and logs."""
