"""The I/O of the autoscaler: watches, the loop, writes, reports."""
