"""Builds the docs site from the pages of this repository: `make docs`."""
