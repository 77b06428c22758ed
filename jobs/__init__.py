"""Jobs and queues of every dialect, read into a few nouns. Pure."""
