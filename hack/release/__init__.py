"""Make what a release publishes, in one folder, with the same bytes each time."""
