"""Benchmarks: ours, the baselines and the lower bound in one run. `python -m hack.bench NAME [--quick]`."""
