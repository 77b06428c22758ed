"""The second part of the demo: a queue that lends its idle GPUs and takes them back."""
