"""The writes of gates, and their metrics."""
