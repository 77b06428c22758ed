"""How members meet: the door, the link, the coordinator behind the door, and the search for it."""
