"""Scheduling gates: the pods of a gang stay behind our gate until the gang has a plan, and start together."""
