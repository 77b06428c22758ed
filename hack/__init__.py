"""Chores of developers: a real control plane for tests, benchmarks. Nothing that ships imports it."""
