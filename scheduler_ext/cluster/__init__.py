"""The cluster as the watches show it: nodes, pods, gangs and free room. It decides nothing."""
