"""The process beside an agent that hashes what its processes seal, and carries it to storage."""
