"""Scheduling gates: a gang's pods stay behind ours until a plan for the gang stands, and leave it together."""
