"""Storage that fails in the middle of a write, and memory that changes in the middle of one."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.launcher.checkpoint.storage.world import (
    NOW_S,
    RUN,
    Said,
    commit,
    region,
    round_of_step,
    save,
    save_all,
    small_pieces,
)
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter, ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, newest_manifest
from turnout.launcher.errors import BadCheckpoint, StorageFailed

FULL = Path(__file__).with_name("scripts") / "full.py"


@pytest.mark.root
@pytest.mark.debian("util-linux")
def test_a_full_and_a_read_only_disk(folder):
    (folder / "disk").mkdir()
    command = ("unshare", "--mount", "--propagation", "private", sys.executable, FULL, folder / "disk")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


class Fails:
    """A failpoint at which a system call fails, the so-manyth time that any is met."""

    def __init__(self, number, error):
        self.left, self.error, self.met = number, error, []

    def __call__(self, place):
        self.met.append(place)
        self.left -= 1
        if self.left == 0:
            raise OSError(self.error, os.strerror(self.error))


def points(path):
    """How many failpoints a save and a commit of one rank meet."""
    path.mkdir()
    counted = Fails(0, 0)
    store = PosixStore(path, failpoint=counted)
    save_and_commit(store)
    return len(counted.met)


def save_and_commit(store):
    """Save and commit step 20 in a world of one."""
    save(store, 20, 0, world=1, paced=small_pieces())
    assert commit(store, 20, world=1)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(errno.EIO, "the device failed", id="a bad disk"),
        pytest.param(errno.ESTALE, "mount it afresh", id="NFS that forgot the folder"),
        pytest.param(errno.EDQUOT, "the quota is used up", id="a quota"),
        pytest.param(errno.ENOSPC, "no space is left", id="a full disk"),
        pytest.param(errno.EROFS, "read-only", id="a disk that turned read-only"),
        pytest.param(errno.EPROTO, "Protocol error", id="an error nobody thought of"),
    ],
)
def test_a_write_that_fails_at_any_point_is_told_and_commits_nothing(folder, error, message):
    for number in range(1, points(folder / "counted") + 1):
        path = folder / str(number)
        path.mkdir()
        save_all(PosixStore(path), 10)
        store = PosixStore(path, failpoint=(fails := Fails(number, error)))
        with pytest.raises(StorageFailed, match=message):
            save_and_commit(store)
        assert not [*path.glob("*/.*")], fails.met
        assert committed_steps(PosixStore(path), Said()) in (
            (10,),
            (10, 20),
        )  # 20 only by a manifest that was in place already
        assert (20 in committed_steps(PosixStore(path), Said())) == (fails.met.count("placed") == 3), fails.met
        save(store, 20, 0, world=1)
        assert commit(store, 20, world=1)
        assert (round_of_step(store, 10), round_of_step(store, 20)) == (1, 1)


PLACES = ("folder_made", "opened", "wrote", "synced", "placed", "unlinked")


def vanishing(path, place):
    """A failpoint at which a path vanishes."""
    return lambda at: shutil.rmtree(path, ignore_errors=True) if at == place else None


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_that_vanishes_is_told_and_not_made_up_for(folder, place):
    path = folder / "checkpoints"
    path.mkdir()
    with pytest.raises(StorageFailed, match=r"folder is gone.*ENOENT"):
        save(PosixStore(path, failpoint=vanishing(path, place)), 10, 0, world=1)
    assert not path.exists()


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_vanishes_is_never_committed(folder, place):
    with suppress(StorageFailed):  # what vanishes behind the last look at it is seen by the commit
        save(PosixStore(folder, failpoint=vanishing(folder / "step-0000000010", place)), 10, 0, world=1)
    assert commit(PosixStore(folder), 10, world=1) is None
    assert newest_manifest(PosixStore(folder), Said()) is None


def test_a_folder_that_was_never_there_is_told(folder):
    with pytest.raises(StorageFailed, match="folder is gone"):
        save(PosixStore(folder / "typo"), 10, 0)
    with pytest.raises(StorageFailed, match="folder is gone"):
        newest_manifest(PosixStore(folder / "typo"), Said())


def test_a_file_in_place_of_the_folder_is_told(folder):
    (folder / "file").write_text("")
    for store in (PosixStore(folder / "file"), PosixStore(folder / "file" / "below")):
        with pytest.raises(StorageFailed, match=r"no folder.*ENOTDIR"):
            save(store, 10, 0)
        with pytest.raises(StorageFailed):
            store.prepare()


@pytest.mark.parametrize("chunk", [0, 1, 2], ids=["its first chunk", "its second", "its last, shorter one"])
def test_memory_that_changed_since_it_was_hashed_never_becomes_a_file(folder, chunk):
    octets = region(10, 0, size_bytes=9 << 20)
    sums = sums_of(memoryview(octets))
    octets[(chunk << 22) + 5_000] ^= 1
    with pytest.raises(BadCheckpoint, match=f"chunk {chunk} of rank 0 is not what was hashed"):
        persist(PosixStore(folder), ShardWrite(RUN, 10, 1, 0, 1, 4_096), memoryview(octets), sums, NOW_S)
    assert [*folder.glob("step-*/*"), *folder.glob("step-*/.*")] == []


def test_memory_that_changes_while_written_never_becomes_a_file_so_changed(folder):
    octets = region(10, 0, size_bytes=9 << 20)
    sums, wrote = sums_of(memoryview(octets)), []

    def change(place):
        wrote.append(place)
        if wrote.count("wrote") == 2 and place == "wrote":  # within the first chunk, and the last one
            octets[3 << 20] ^= 1
            octets[-1] ^= 1

    with pytest.raises(BadCheckpoint, match="chunk 2 of rank 0"):
        persist(
            PosixStore(folder, failpoint=change), ShardWrite(RUN, 10, 1, 0, 1, 4_096), memoryview(octets), sums, NOW_S
        )
    assert [*folder.glob("step-*/*"), *folder.glob("step-*/.*")] == []


def test_a_change_behind_the_hash_of_a_chunk_is_not_in_the_file(folder):
    octets = region(10, 0)
    before = bytes(octets)

    def change(place):
        if place == "wrote":  # the chunk was copied aside; its last piece is still to be written
            octets[-1] = before[-1] ^ 1

    store = PosixStore(folder, failpoint=change)
    pieces = RateLimiter(RateLimit(piece_bytes=4_096))
    persist(store, ShardWrite(RUN, 10, 1, 0, 1, 4_096), memoryview(octets), sums_of(memoryview(before)), NOW_S, pieces)
    assert commit(store, 10, world=1)
    assert round_of_step(store, 10) == 1
