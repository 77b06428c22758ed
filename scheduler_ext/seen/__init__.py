"""What the adviser has seen: pods as members of gangs, and the room that is left. It decides nothing."""
