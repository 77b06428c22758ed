"""The parts of an observation besides jobs: gangs of others that wait, the map, what pods report. Pure."""
