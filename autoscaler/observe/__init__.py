"""What the autoscaler sees besides its jobs: gangs of others that wait, the map, what pods report. Pure."""
