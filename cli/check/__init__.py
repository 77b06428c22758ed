"""Checks an installation: what is installed, used, on the map, up to date, and permitted."""
