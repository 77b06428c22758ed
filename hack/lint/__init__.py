"""Checks that `make check` runs besides ruff and mypy: architecture, words, promises and citations."""
