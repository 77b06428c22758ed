"""A training loop of torch without gloo: ranks keep in step by a file, and save every step in memory.

What is trained is a state whose every value follows from its step and its rank, so that a state that was torn, or is
another rank's, or was never saved, is seen at once. Arguments: the crew's folder, then words: `disk=N` writes every
N-th step to storage too (0: none), `last=N` ends the job after that step, `bytes=N` is the state's size, `kills=N,S`
has a process kill itself in rounds 1 to N, when and how as seed S has it, `wait` waits for storage before it ends,
`replicas=N` has N other workers keep copies, `alike` saves the same state on all ranks, `fails=N` has rank 0 fail
before it saves step N, which rank 1 has saved, and `late=N,MODULE+MODULE` imports these after N steps of each life.
"""

import importlib
import json
import os
import random
import signal
import struct
import sys
import threading
import time
from pathlib import Path

import torch

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import find
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
from turnout.launcher.checkpoint.format.arena_layout import SlotState
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import LauncherError

folder = Path(sys.argv[1])
words = dict(word.partition("=")[::2] for word in sys.argv[2:])
name, round_, rank = os.environ["CREW_NAME"], int(os.environ["TURNOUT_ROUND"]), int(os.environ["RANK"])
world, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
KILLS, SEED = map(int, words.get("kills", "0,0").split(","))
MOMENTS = ("between saves", "in mid-save", "while it is hashed", "while it is persisted", "while it loads", "any time")
PLACE = struct.Struct("<q")


def log(file, **fields):
    """One line, whole, even of a process that is killed."""
    line = json.dumps({"round": round_, "rank": rank, "name": name, **fields}) + "\n"
    out = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, line.encode())
    os.close(out)


class Pace:
    """In step as if by a collective: nobody begins a step before all have saved the one before it."""

    def __init__(self):
        self._file = os.open(folder / f"pace-{round_}", os.O_RDWR | os.O_CREAT, 0o600)

    def meet(self, step, last):
        """Wait for the others. Is this the last step? last: rank 0 says so, unless it is to fail before the next.

        It says which one: who is asleep at the end of the step before may read it a step too soon.
        """
        if last and rank == 0:
            self._write(world, step + 1)
        self._write(rank, step + 1)
        while any(self._read(other) < step + 1 for other in range(world)):
            time.sleep(0.0003)
        if rank == 0 and str(step + 1) == words.get("fails"):
            while self._read(1) < step + 2:
                time.sleep(0.0003)
            sys.exit("it was to fail")
        return self._read(world) == step + 1

    def _write(self, at, value):
        os.pwrite(self._file, PLACE.pack(value), at * PLACE.size)

    def _read(self, at):
        return PLACE.unpack(os.pread(self._file, PLACE.size, at * PLACE.size).ljust(PLACE.size, b"\0"))[0]


def state_of(step):
    """A tensor, a value and a name for each rank and step."""
    rank = 0 if "alike" in words else globals()["rank"]
    value = step * 1_000 + rank
    weights = torch.full((int(words.get("bytes", 1 << 20)) // 8,), value, dtype=torch.int64)
    return {"weights": weights, "step": step, "rank": rank, "more": {"noise": torch.arange(step % 50 + 1)}}


def check(step, state):
    """True if every byte of `state` is what this rank saved at this step."""
    expected = state_of(step)
    assert (state["step"], state["rank"]) == (step, expected["rank"]), (state["step"], state["rank"], step)
    assert torch.equal(state["weights"], expected["weights"]), f"torn: {state['weights'].unique().tolist()[:9]}"
    assert torch.equal(state["more"]["noise"], expected["more"]["noise"])


class Killer(threading.Thread):
    """Kills this process once: at a moment that is seen in the arena, after so many saves of this round."""

    def __init__(self, dice):
        super().__init__(daemon=True)
        self.moment, self.after = MOMENTS[round_ % len(MOMENTS)], dice.randrange(1, 7)
        self.pause_s, self.saves = dice.random() * 0.05, 0

    def run(self):
        if self.moment == "while it loads":
            time.sleep(self.pause_s / 5)
            self.kill()
        while self.saves < self.after:
            time.sleep(0.0002)
        if self.moment in ("between saves", "any time"):
            time.sleep(self.pause_s)
            self.kill()
        found = find(os.environ["TURNOUT_MEMORY_DIR"], os.environ["TURNOUT_RUN"], os.environ["TURNOUT_WORKER"])
        arena = Arena.open(next(each.path for each in found if each.identity.local_rank == local_rank))
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s and not any(map(self.now, arena.slots())):
            pass
        self.kill()

    def now(self, slot):
        if self.moment == "in mid-save":
            return slot.state is SlotState.WRITING
        return slot.pinned and slot.state is (
            SlotState.SEALED if self.moment == "while it is hashed" else SlotState.HASHED
        )

    def kill(self):
        log("kills", moment=self.moment, saves=self.saves)
        os.kill(os.getpid(), signal.SIGKILL)


def begin():
    """Tell that this process is there, as the crew wants it told."""
    note = folder / "lives" / f"{name}-{round_}-{rank}-{os.getpid()}"
    note.with_suffix(".alive").write_text(f"{time.monotonic():020.6f}")
    record = {"name": name, "round": round_, "rank": rank, "world": world, "pid": os.getpid(), "env": {}}
    record |= {"began_s": time.monotonic(), "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
    part = note.with_suffix(".part")
    part.write_text(json.dumps(record))
    part.rename(note.with_suffix(".json"))
    return os.open(note.with_suffix(".alive"), os.O_WRONLY)


def import_late(steps):
    """Import what is to be imported after so many steps."""
    after, _, modules = words.get("late", "-1,").partition(",")
    if steps == int(after):
        log("imported", modules=[importlib.import_module(each).__name__ for each in modules.split("+")])


def main():
    dice, killer = random.Random(f"{SEED}/{round_}"), None
    victim = dice.randrange(world)
    alive = begin()
    if round_ <= KILLS and rank == victim:
        killer = Killer(dice)
        killer.start()
    disk, last = int(words.get("disk", 10)), int(words.get("last", 1 << 40))
    more = {"replicas": int(words.get("replicas", 0)), "replicated": "alike" in words}
    checkpoints, steps, pace = Checkpointer(folder / "checkpoints", **more), Steps(), Pace()
    try:
        loaded = checkpoints.load()
    except LauncherError as error:
        log("broken", why=str(error))
        raise
    restore = int(os.environ["TURNOUT_RESTORE_STEP"])
    if loaded:
        check(*loaded)
    start, copied = loaded.step + 1 if loaded else 0, -1
    log("starts", step=start - 1, restore=restore, stored=int(os.environ.get("TURNOUT_STORED_STEP", -2)))
    for step in steps.count(start):
        os.pwrite(alive, b"%020.6f" % time.monotonic(), 0)
        state, to_disk = state_of(step), bool(disk) and step % disk == 0
        log("begun", step=step)
        checkpoints.save(step, state, disk=to_disk)
        log("saved", step=step)
        if killer:
            killer.saves += 1
        if more["replicas"] and copied < (copied := checkpoints.stats().replicated):
            log("copied", step=copied)
        state["weights"].fill_(-1)  # what was saved is a copy
        import_late(step - start)
        if steps.done(step):
            log("stops", step=step)
            break
        if pace.meet(step, last=step >= last or (round_ > KILLS and (folder / "finish").exists())):
            break
    if "wait" in words:
        checkpoints.wait()
    log("ends", step=step)


main()
