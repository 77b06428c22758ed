"""The cache of the extender: pods as members of gangs, and the capacity that is left. It decides nothing."""
