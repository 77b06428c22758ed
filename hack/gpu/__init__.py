"""Shows the launcher and its memory checkpoints on a machine with a GPU: hack/gpu/check.sh."""
