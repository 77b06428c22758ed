"""The I/O of the embedded API: HTTP, the clock, the kubeconfig on disk."""
