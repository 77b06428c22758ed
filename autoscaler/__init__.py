"""The autoscaler: a queue's idle GPUs go to elastic jobs, and come back the moment somebody needs them."""
