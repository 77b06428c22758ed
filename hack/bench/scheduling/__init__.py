"""What the throughput benchmark runs: clusters, configurations, and pods counted as they are bound."""
