"""A training process saves its state, and takes it up again: torch on one side, an arena on the other."""
