"""Faults of a checkpoint's storage and memory, kinds 16 to 18, on the product's store, writer, reader and arena.

Run as a program of its own, with one thread when it forks and mounts of its own: `python -m
hack.chaos.scenarios.checkpoint_faults SEED FOLDER KIND...`. Prints one line of JSON with what struck and what held.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hack.chaos.fault_kinds import Kind
from hack.chaos.scenarios.storage_faults import FAULTS, SLOW_MIB_S, small_disk
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.faulty_filesystem import FaultyFilesystem
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.daemon.commit import Commit
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord, newest
from turnout.launcher.checkpoint.format.shard_file import Spec, head_of, pack, sums_of
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter, ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import committed, load
from turnout.launcher.checkpoint.storage.store import shard_name, step_name
from turnout.launcher.errors import BadCheckpoint, StorageFailed

RUN, WORLD, SHARD_BYTES = "chaos", 2, 28 << 10
LIVES, POINTS = 12, 90  # writers that are killed; failpoints among which each death is drawn

LOST = "a step that was committed is there after it, whole"
WHOLE = "every committed step is whole, bit for bit"
TOLD = "a save that failed says so, and commits nothing"
AGAIN = "once the fault is over, a step is saved again"
CAUGHT = "a byte that is not what was written is never loaded"
BACK = "the newest whole step is loaded instead"
SLOWLY = "a slow disk delays a save and breaks none"


def play(seed: int, folder: Path, kinds: Sequence[Kind]) -> list[Strike]:
    """Strike these kinds in a child with mounts of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", __spec__.name, str(seed), str(folder), *(kind.name for kind in kinds)]
    told = subprocess.run(
        ("unshare", "--mount", "--propagation", "private", *command),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return [_strike(each) for each in json.loads(told.stdout.splitlines()[-1])]


def _strike(told: Mapping[str, object]) -> Strike:
    checks = tuple(Check(each["invariant"], tuple(each["violations"])) for each in told["checks"])  # type: ignore[attr-defined]
    return Strike(Kind[str(told["kind"])], int(str(told["seed"])), int(str(told["times"])), checks, str(told["detail"]))


def main(words: Sequence[str]) -> int:
    """Strike the kinds that are named."""
    seed, folder = int(words[0]), Path(words[1])
    strikes = []
    for name in words[2:]:
        home = folder / name.lower()
        home.mkdir(parents=True)
        strikes.append(SCENARIOS[Kind[name]](seed, home))
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps([{**asdict(each), "kind": each.kind.name} for each in strikes]))
    return 0


# What is saved and loaded.


def region(step: int, rank: int, round_: int) -> bytearray:
    """Make the safetensors file of a rank, a step and a round: always the same bytes."""
    layout = pack([Spec("weight", "U8", (SHARD_BYTES,))])
    dice = random.Random(f"{step} {rank} {round_}")
    return bytearray(head_of(layout, {"rank": str(rank)}) + dice.randbytes(SHARD_BYTES))


def save(store: PosixStore, step: int, round_: int) -> bool:
    """Save and commit a step of all ranks. Returns whether it is committed; raises StorageFailed."""
    paced = RateLimiter(RateLimit(piece_bytes=4 << 10))
    for rank in range(WORLD):
        octets = memoryview(region(step, rank, round_))
        wanted = ShardWrite(RUN, step, round_, rank, WORLD, octets.nbytes - SHARD_BYTES)
        persist(store, wanted, octets, sums_of(octets), time.time(), paced)
    return Commit(store, RUN, step, round_, WORLD, _silent).try_commit() is not None


def restored(store: PosixStore) -> tuple[int, list[str]]:
    """Load the newest step that is whole, as a restart does. Returns it, -1 for none, and what was loaded wrongly."""
    for manifest in committed(store, _silent):
        try:
            shards = [load(store, manifest, rank) for rank in range(manifest.world)]
        except BadCheckpoint:
            continue
        wrong = [
            f"rank {rank} of step {manifest.step} has other bytes"
            for rank, shard in enumerate(shards)
            if shard != region(manifest.step, rank, manifest.round)
        ]
        return manifest.step, wrong
    return -1, []


def _silent(event: str, fields: Mapping[str, object]) -> None:
    """Tell nobody."""


# 16: a writer is killed between any two system calls.


def kill_writers(seed: int, home: Path) -> Strike:
    """Fork writers one after the other, each of which kills itself at a drawn failpoint."""
    dice, store, newest_step, struck = random.Random(f"writer/{seed}"), PosixStore(home), 0, 0
    lost, broken = list[str](), list[str]()
    for life in range(1, LIVES + 1):
        told, tells = os.pipe()
        point = dice.randint(1, POINTS)
        if (child := os.fork()) == 0:
            _write_until_killed(home, newest_step, life, point, tells)
        os.close(tells)
        struck += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        acknowledged = max((int(word) for word in os.read(told, 4096).split()), default=newest_step)
        os.close(told)
        found, wrong = restored(store)
        broken += wrong
        if found < acknowledged and acknowledged:
            lost.append(f"step {acknowledged} was committed, {found} is the newest after a kill at point {point}")
        newest_step = max(found, 0)
    checks = (Check(LOST, tuple(lost[:3])), Check(WHOLE, tuple(broken[:3])))
    return Strike(Kind.WRITER_KILLED, seed, struck, checks, f"{struck} of {LIVES} writers killed")


def _write_until_killed(home: Path, newest_step: int, life: int, point: int, tells: int) -> None:
    left = point

    def failpoint(place: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    store = PosixStore(home, failpoint=failpoint)
    for step in range(max(newest_step - 1, 1), newest_step + 20):  # the newest once more, as after a rollback
        save(store, step, life)
        os.write(tells, f"{step} ".encode())
    os._exit(1)


# 17: a disk that is full, read-only, gone, slow, failing, or a process without files.


def fail_storage(seed: int, home: Path) -> Strike:
    """Save under each fault, in an order that is drawn, on file systems of their own; and once more after it."""
    dice = random.Random(f"storage/{seed}")
    order, struck = list(FAULTS), 0
    dice.shuffle(order)
    wrong: dict[str, list[str]] = {invariant: [] for invariant in (TOLD, LOST, AGAIN, SLOWLY)}
    with FaultyFilesystem(home / "fuse", home / "behind") as device, small_disk(home / "disk") as disk:
        for number, name in enumerate(order):
            fault, step = FAULTS[name], 10 * (number + 1)
            store = PosixStore(device.at if fault.on_device else disk)
            save(store, step, 1)
            began_s = time.monotonic()
            with fault.strike(device, store.path, dice) as hit:
                saved = _saved(store, step + 1)
            took_s, least_s = time.monotonic() - began_s, WORLD * SHARD_BYTES / 2**20 / SLOW_MIB_S
            struck += hit() > 0
            if saved is fault.fails:
                wrong[TOLD].append(f"{name}: a save in it ended {'well' if saved else 'with an error'}")
            if name == "slow" and took_s < least_s:
                wrong[SLOWLY].append(f"a save took {took_s:.2f} s, {least_s:.2f} s at least")
            found, other = restored(store)
            wrong[LOST] += [f"{name}: {each}" for each in other]
            if found != step + saved:
                wrong[LOST if found < step else TOLD].append(f"{name}: step {found} is the newest, not {step + saved}")
            if not _saved(store, step + 2) or restored(store) != (step + 2, []):
                wrong[AGAIN].append(f"{name}: step {step + 2} was not saved after it")
    checks = tuple(Check(invariant, tuple(each)) for invariant, each in wrong.items())
    return Strike(Kind.STORAGE, seed, struck, checks, ", ".join(order))


def _saved(store: PosixStore, step: int) -> bool:
    """True if a step was saved and committed; False if storage failed and said so."""
    try:
        return save(PosixStore(store.path), step, 1)
    except StorageFailed:
        return False


# 18: bytes that change in storage or in memory.


def corrupt(seed: int, home: Path) -> Strike:
    """Harm the newest step in every way, one after the other, and memory before it is written."""
    dice = random.Random(f"corrupt/{seed}")
    loaded, not_back, struck = list[str](), list[str](), 0
    for name, harm in _HARMS.items():
        store = PosixStore(home / name)
        store.prepare()
        for step in (10, 20):
            save(store, step, 1)
        struck += harm(store.path / step_name(20), dice)
        found, wrong = restored(store)
        loaded += [f"{name}: {each}" for each in wrong]
        not_back += [f"{name}: step {found} was loaded, 10 is the newest whole one"] * (found != 10)
    persisted = _corrupt_memory(home / "memory", dice)
    loaded += persisted
    checks = (Check(CAUGHT, tuple(loaded)), Check(BACK, tuple(not_back)))
    return Strike(Kind.CORRUPTION, seed, struck + 1, checks, ", ".join([*_HARMS, "a bit of shared memory"]))


def _flip(path: Path, dice: random.Random) -> int:
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    content[at] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    return 1


def _cut(path: Path, dice: random.Random) -> int:
    os.truncate(path, dice.randrange(path.stat().st_size))
    return 1


def _swap(folder: Path, dice: random.Random) -> int:
    one, other = (folder / shard_name(rank) for rank in (0, 1))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return 1


def _older(folder: Path, dice: random.Random) -> int:
    name = shard_name(dice.randrange(WORLD))
    shutil.copyfile(folder.parent / step_name(10) / name, folder / name)
    return 1


_HARMS: Mapping[str, Callable[[Path, random.Random], int]] = {
    "a flipped bit": lambda folder, dice: _flip(folder / shard_name(dice.randrange(WORLD)), dice),
    "a flipped bit of the manifest": lambda folder, dice: _flip(folder / "manifest.json", dice),
    "a shard cut short": lambda folder, dice: _cut(folder / shard_name(dice.randrange(WORLD)), dice),
    "a manifest cut short": lambda folder, dice: _cut(folder / "manifest.json", dice),
    "two shards swapped": _swap,
    "a shard of an older step": _older,
}


def _corrupt_memory(home: Path, dice: random.Random) -> list[str]:
    """Flip a bit of an arena after it was hashed, and write it to storage."""
    memory = Path("/dev/shm") / f"chaos-{secrets.token_hex(8)}"
    memory.mkdir(mode=0o700)
    store = PosixStore(home)
    store.prepare()
    try:
        arena = Arena.make(memory, Identity(RUN, "w-0", 0, boot_id(), 3))
        octets = region(10, 0, 1)
        record = ShardRecord(0, 10, 1, 0, 1, len(octets) - SHARD_BYTES, SHARD_BYTES)
        generation = arena.begin(record)
        assert generation is not None
        view = arena.map(generation, record.shard_bytes)
        view[:] = octets
        arena.seal(generation, record)
        arena.pin(generation)
        arena.set_hashed(generation, sums_of(view))
        view[dice.randrange(len(octets))] ^= 1 << dice.randrange(8)
        assert newest(arena.slots()) == generation
        try:
            wanted = ShardWrite(RUN, 10, 1, 0, 1, record.shard_bytes - SHARD_BYTES)
            persist(store, wanted, view, arena.sums(generation), time.time())
        except BadCheckpoint:
            return []
        finally:
            view.release()
            arena.close()
        return ["a flipped bit of shared memory was written to storage"]
    finally:
        shutil.rmtree(memory)


SCENARIOS: Mapping[Kind, Callable[[int, Path], Strike]] = {
    Kind.WRITER_KILLED: kill_writers,
    Kind.STORAGE: fail_storage,
    Kind.CORRUPTION: corrupt,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
