"""Probes: short processes that measure this node alone and with others of its group, and are killed when stuck."""
