"""The chart under a strike: upgraded and rolled back by real helm."""
