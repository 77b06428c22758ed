"""The writes of the nominator: nominations, gates, evictions and switch paths."""
