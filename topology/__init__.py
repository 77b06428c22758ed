"""The map: switches, distances, and where a gang fits best. Pure; no I/O anywhere in this package.

The map comes from a ConfigMap. This package never reads labels of nodes: scheduler_ext/cluster/levels.py translates the
keys of such labels to tiers.
"""
