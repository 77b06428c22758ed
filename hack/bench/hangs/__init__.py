"""A small world that trains, is recorded, and hangs where it is told to."""
