"""The parts of a decision: what is left, who leaves, who grows, and what a change is worth. Pure."""
