"""A job is resized, a process of it is killed, a node is lost: under ours and under torchrun."""
