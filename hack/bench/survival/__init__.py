"""Trials of `hack.bench survival`: whole jobs of real agents, in each of which a process is killed."""
