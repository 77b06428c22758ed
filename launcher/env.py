"""The names of the environment variables that an agent sets for its training processes."""

# The round, the step to restore from memory, and the socket of the checkpoint daemon.

from __future__ import annotations

ROUND, RESTORE, DAEMON = "TURNOUT_ROUND", "TURNOUT_RESTORE_STEP", "TURNOUT_CHECKPOINT_DAEMON"
PARTS = "TURNOUT_RESTORE_PARTS"  # a step saved by others: "step of so many ranks in round", "" for none
# The step in storage that all ranks read, and its folder.
STORED, STORED_IN = "TURNOUT_STORED_STEP", "TURNOUT_STORED_IN"
WORKER_NUM = "WORKER_NUM"  # the number of workers for DLRover's scripts, whatever the size of the world
RUN, WORKER, MEMORY = "TURNOUT_RUN", "TURNOUT_WORKER", "TURNOUT_MEMORY_DIR"  # the owner of the memory, and its folder
PARENT = "TURNOUT_PARENT"  # marks all processes that descend from one forkserver parent
