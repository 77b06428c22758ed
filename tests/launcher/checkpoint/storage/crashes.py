"""Kill a writer, see what a reader finds, and go on from there: python crashes.py points FOLDER, or times FOLDER SEED.

points: at every failpoint in turn, each in a folder of its own. times: at random moments, again and again in one.
Run as a program of its own, which has one thread when it forks. Prints how many were killed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from tests.launcher.checkpoint.storage.world import NOW_S, Said, commit, round_of_step, save, save_all, small_pieces
from turnout.launcher.checkpoint.format.manifest import Latest
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, newest_manifest

KILLS = 60
LONGEST_S = 0.01
ALL = 1 << 60


def story(store, round_, reached):
    """Save 20, then 10 once more as after a rollback, then 30; keep the newest alone. reached: told each commit."""
    for step in (20, 10, 30):
        for rank in (1, 0):
            save(store, step, rank, round_=round_, paced=small_pieces())
        assert commit(store, step, round_=round_)
        reached(step)
    remove_old_steps(store, Latest(1), Said())
    reached(40)


def die_at(number):
    """A failpoint that kills this process when it is met for the so-manyth time."""
    left = [number]

    def failpoint(_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


def points(parent):
    """Die one failpoint later each time until nobody dies."""
    for number in range(1, 1_000):
        path = parent / f"{number:03}"
        path.mkdir()
        save_all(PosixStore(path), 10)
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            store = PosixStore(path, failpoint=die_at(number))
            story(store, 2, lambda step, writer=writer: os.write(writer, bytes([step])))
            os._exit(0)
        os.close(writer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        reached = os.read(reader, 16)
        os.close(reader)
        look(PosixStore(path), reached)
        save_again(PosixStore(path))
        if status == 0:
            return number - 1
        assert status == -signal.SIGKILL, f"ended with {status} at point {number}"
    raise AssertionError("it never came to its end")


def look(store, reached):
    """Check that what is committed is whole, and that no commit is lost."""
    steps = committed_steps(store, Said())
    rounds = {step: round_of_step(store, step) for step in steps}
    assert steps[-1] >= max((step for step in reached if step <= 30), default=10)
    if 30 not in reached and 30 not in steps:
        assert 10 in steps, "a step was lost before another one was asked to take its place"
    if 10 in reached and 10 in steps:
        assert rounds[10] == 2
    assert all(round_ == 2 for step, round_ in rounds.items() if step > 10)


def save_again(store):
    """The next round does the same, and sweeps: nothing is left of the killed one."""
    story(store, 3, lambda _: None)
    sweep(store, NOW_S * 2, Said(), older_than_s=1)
    assert committed_steps(store, Said()) == (30,)
    assert round_of_step(store, 30) == 3
    left = {file.name for file in store.path.glob("*/*")}
    assert len(left) == 5, f"not only two shards, their notes and a manifest: {left}"


def times(path, seed):
    """Kill at random moments a writer that saves on and on, each life a round."""
    dice, store, before, minimum = random.Random(seed), PosixStore(path), 0, 0
    for round_ in range(1, KILLS + 1):
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            for step in range(max(before - 1, 0), ALL):  # the newest two once more, as after a rollback
                save_all(store, step, round_=round_)
                os.write(writer, b".")
                remove_old_steps(store, Latest(3), Said(), just_committed=step)
        os.close(writer)
        commits = dice.randrange(5)
        marks = b"".join(os.read(reader, 1) for _ in range(commits))
        time.sleep(dice.uniform(0, LONGEST_S))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        os.close(reader)
        before, minimum = survived(store, before, round_), minimum + max(len(marks) - 3, 0)
    assert before >= minimum > 5
    return KILLS


def survived(store, before, round_):
    """See that all there is is whole, and nothing older than it was. Gives the newest step."""
    found = newest_manifest(store, Said())
    now = found.step if found else 0
    assert now >= before, "a committed step is gone"
    for step in committed_steps(store, Said()):
        round_of_step(store, step)
    sweep(store, NOW_S * 2, Said(), older_than_s=ALL, ranks={0: round_ + 1, 1: round_ + 1})
    assert not [*store.path.glob("step-*/.rank-*.tmp")]
    return now


if __name__ == "__main__":
    killed = points(Path(sys.argv[2])) if sys.argv[1] == "points" else times(Path(sys.argv[2]), sys.argv[3])
    print(killed)
