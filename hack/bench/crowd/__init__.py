"""What the yard's benchmark sets on a yard: pods by the thousand, and watchers."""
