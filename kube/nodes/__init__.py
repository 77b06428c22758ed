"""Reads what pods and nodes bear about a node's health: reports and taints."""
