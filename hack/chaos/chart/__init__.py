"""The chart under changes: a cluster into which helm installs it, and upgrades and rollbacks in mid-training."""
