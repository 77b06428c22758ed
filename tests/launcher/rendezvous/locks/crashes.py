"""Die at every step in turn of a claim and a renewal, each time in a folder of its own: python crashes.py FOLDER.

A step is a system call that Python tells its audit hooks of: opening, listing, linking, replacing, removing. Run as a
program of its own, which has one thread when it forks.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from turnout.launcher.model import RestartBudget, RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound, same_grant
from turnout.launcher.rendezvous.locks.file_lock import FileLock

STEPS = ("open", "os.listdir", "os.link", "os.rename", "os.remove", "os.mkdir")
ANNA = RoundRecord("bert", 1, "anna", budget=RestartBudget(1, 2, 100))
CRASHED = 9


async def live(folder):
    """Claim the first round and renew it once."""
    anna = FileLock(folder, "bert")
    ours = await anna.claim(ANNA, HeldRound(None, "", 0.0))
    ours = await anna.renew(ours)
    assert same_grant(ours.record, ANNA)


def die_at(step):
    """End this process, as SIGKILL would, before its step of that number."""
    left = [step]

    def hook(event, _):
        if event in STEPS:
            left[0] -= 1
            if left[0] == 0:
                os._exit(CRASHED)

    sys.addaudithook(hook)


def main(parent):
    """Crash one step later each time until nothing crashes."""
    import asyncio

    for step in range(1, 200):
        folder = parent / f"{step:03}"
        folder.mkdir()
        if (pid := os.fork()) == 0:
            die_at(step)
            asyncio.run(live(folder))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0:
            return 0
        if status != CRASHED:
            return status
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
