"""Kubernetes on the wire: raw objects, free room of nodes, list and watch, leader election."""
