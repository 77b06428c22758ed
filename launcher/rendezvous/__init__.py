"""The rendezvous: one state machine for coordinator and members, as values. Its I/O is in transport/ and locks/."""
