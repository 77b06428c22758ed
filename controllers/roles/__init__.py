"""Decide on the pods of one role: who is made, who leaves, who is made anew and when."""
