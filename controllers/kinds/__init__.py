"""The kinds, a module of plain functions each: what its object says, what its pods are given, when it has ended."""
