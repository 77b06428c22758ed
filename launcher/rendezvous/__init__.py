"""The rendezvous as values: what the coordinator decides, what a member does when it has lost the coordinator."""
