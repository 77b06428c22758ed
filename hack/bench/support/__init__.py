"""Outcomes and percentiles, which every benchmark uses."""
