"""Queues in their own dialects, each read into one noun: what its pods may ask for together, and what is its own.

What is used is counted from pods, never read from a status. Source: docs/facts/autoscaling.md 6.
"""
