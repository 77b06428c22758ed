"""The scenes of the checkpoint benchmark: each measures one thing in a process of its own."""
