"""Benchmarks: ours, the anchors and the floor in one run. `python -m hack.bench NAME [--quick]`."""
