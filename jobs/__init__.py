"""What people submit, in every dialect, as a few nouns. Pure."""
