"""What the benchmark `lending` replays, and the rival beside it."""
