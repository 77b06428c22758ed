"""What `make check` runs besides ruff and mypy: the rules of the architecture, promises and citations."""
