"""The throughput benchmark: clusters, configurations, and pods counted as they are bound."""
