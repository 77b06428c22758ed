"""Fill one domain with a number of pods: its capacity, the hosts used, and the number of switches above them."""
