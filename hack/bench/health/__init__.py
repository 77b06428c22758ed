"""What the benchmark of health checks measures: a floor of simulated nodes, and the rule that it is held against."""
