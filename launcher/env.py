"""The names of the environment variables that an agent sets for its training processes."""

from __future__ import annotations

ROUND, RESTORE, DAEMON = "TURNOUT_ROUND", "TURNOUT_RESTORE_STEP", "TURNOUT_KEEPER"
PARTS = "TURNOUT_RESTORE_PARTS"  # a step that others have saved: "step of so many ranks in round", "" for none
STORED, STORED_IN = "TURNOUT_STORED_STEP", "TURNOUT_STORED_IN"  # what all ranks read of this folder of checkpoints
WORKER_NUM = "WORKER_NUM"  # how many workers DLRover's scripts count on, whatever the size of the world is now
RUN, WORKER, MEMORY = "TURNOUT_RUN", "TURNOUT_WORKER", "TURNOUT_MEMORY_DIR"  # whose memory it is, and where it lies
