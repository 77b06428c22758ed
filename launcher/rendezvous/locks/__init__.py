"""Locks that decide which round is next: a Lease, or files on shared storage."""
