"""The only room of `scheduler_ext` that touches network, clock and logs."""
