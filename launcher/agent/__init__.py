"""The agent of one worker: its loop, its session with the coordinator, and the start of everything beside it."""
