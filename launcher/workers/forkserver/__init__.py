"""Warm parents of training processes: they import torch once, and fork each process from there."""
