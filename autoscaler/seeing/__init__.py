"""What the lender sees beside jobs of its kinds: gangs of others that wait, the map, what pods report. Pure."""
