"""The I/O of the extender: network, clock and logs. No other room of `scheduler_ext` touches them."""
