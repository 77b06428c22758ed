"""A job is resized, one of its processes is killed, a node is lost: under Turnout and under torchrun."""
