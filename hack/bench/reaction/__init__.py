"""A full cluster on a real API server, gangs that come to it, and how soon a job is told to shrink for each."""
