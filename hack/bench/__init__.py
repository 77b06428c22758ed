"""Benchmarks of Turnout, its baselines and a lower bound in one run: `python -m hack.bench NAME [--quick]`."""
