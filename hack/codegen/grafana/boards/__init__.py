"""The tables of the boards, a module for each audience."""
