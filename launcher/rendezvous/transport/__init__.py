"""The connections between agents: listener, client, the coordinator's server, and the search for it."""
