"""Nodes that are tainted because pods have proven them faulty."""
