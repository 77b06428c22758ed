"""Wishes of pods for their place in the fabric, in our own words and in those of other projects: pure translation."""
