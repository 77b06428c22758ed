"""Decides which step a new world restores, and from which memories: pure rules of the coordinator."""
