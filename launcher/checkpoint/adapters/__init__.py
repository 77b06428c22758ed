"""Adapters for other trainers: what they would write to files goes to our memory and storage."""
