"""Where a replay reads its files."""
