"""The job controllers under seeded faults, on a real API server."""
