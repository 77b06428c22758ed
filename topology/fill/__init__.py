"""How a number of pods fills one domain: its room, which holes, under how many switches."""
