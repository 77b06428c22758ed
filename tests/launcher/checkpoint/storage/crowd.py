"""One rank of several that save side by side: python crowd.py FOLDER RANK WORLD STEPS.

Rank 0 commits, and clears up.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.launcher.checkpoint.storage.world import RUN, Said, save, small_pieces
from turnout.launcher.checkpoint.daemon.persist import Commit, pauses
from turnout.launcher.checkpoint.format.manifest import Latest
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.posix_store import PosixStore

LONGEST_S = 60.0


def main(path, rank, world, last):
    store = PosixStore(path, boot=f"{rank:08x}")
    for step in range(1, last + 1):
        save(store, step, rank, world, paced=small_pieces())
        if rank == 0:
            commit_all(store, step, world)
            remove_old_steps(store, Latest(4), Said(), just_committed=step)
            sweep(store, time.time(), Said(), ranks={0: 1})


def commit_all(store, step, world):
    """Wait for the others as a daemon does."""
    look, until_s = Commit(store, RUN, step, 1, world, Said()), time.monotonic() + LONGEST_S
    for pause_s in pauses():
        if look.try_commit():
            return
        assert time.monotonic() < until_s, f"step {step}: ranks {look.missing_ranks()} never came"
        time.sleep(pause_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
