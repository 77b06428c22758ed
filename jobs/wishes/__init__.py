"""Placement terms of pods in our dialect and in those of other projects. Pure."""
