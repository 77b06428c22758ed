"""The cost of measuring goodput."""
