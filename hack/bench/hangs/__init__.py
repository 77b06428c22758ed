"""A small world that trains, is recorded, and hangs on request."""
