"""The benchmark of health checks: simulated nodes, and the rule that ours is compared with."""
