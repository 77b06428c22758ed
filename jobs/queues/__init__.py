"""Queues of every dialect, read into one noun: what their pods may use together, and what is guaranteed.

Use is counted from pods, never read from a status. Source: docs/facts/autoscaling.md 6.
"""
