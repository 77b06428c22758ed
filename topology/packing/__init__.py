"""Fill one domain with a number of pods: its capacity, which holes, under how many switches."""
