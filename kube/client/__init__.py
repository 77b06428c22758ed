"""The part of `kube` that uses network, clock and logs: the API client, list and watch, leader election."""
