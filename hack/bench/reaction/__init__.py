"""A full cluster on a real API server, arriving gangs, and the time until a job is told to shrink for each."""
