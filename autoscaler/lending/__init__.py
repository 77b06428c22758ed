"""What a decision is made of: what is left, who leaves, who grows, and what a change is worth. Pure."""
