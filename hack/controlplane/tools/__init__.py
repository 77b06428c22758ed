"""The programs of the control plane as Go tools: what they are, how they are built, where they lie."""
