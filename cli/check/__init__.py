"""Look over an installation as its admin would: what is installed, asked, on the map, in time, and allowed."""
