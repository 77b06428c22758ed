"""Checks that `make check` runs besides ruff and mypy: architecture, words, promises and citations.

No comment exempts a line from a rule of architecture, words or docstrings. Exceptions are in tables of the
modules themselves, such as PURE_PARTS in architecture.py.
"""
