"""The map: switches, distances, and where a gang fits best. Pure; no I/O anywhere in this package."""
