"""The page with 5,000 nodes: what a viewer waits for, and what 50 viewers cost."""
