"""Chores of the house: what `make check` runs besides ruff and mypy."""
