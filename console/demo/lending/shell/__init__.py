"""The rim of the second part: a yard, two programs, the terminal, the clock."""
