"""A disk of 1 MiB that fills up and turns read-only: unshare --mount python full.py FOLDER. Mounts it there."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[5]))

import pytest

from tests.launcher.checkpoint.storage.world import Said, commit, round_of_step, save, save_all
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, newest_manifest
from turnout.launcher.errors import StorageFailed


def fill(path):
    """Take all the space that is left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4_096)):
            pass


def main(path):
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "turnout-test", path), check=True, timeout=20)
    store, other = PosixStore(path), PosixStore(path.parent / "other")
    save_all(store, 10)

    # A shard that does not fit: nothing of it stays, and another target takes it.
    with pytest.raises(StorageFailed, match=r"no space is left.*ENOSPC"):
        save(store, 20, 0, size_bytes=2 << 20)
    assert [*(path / "step-0000000020").iterdir()] == []
    other.prepare()
    save_all(other, 20, size_bytes=2 << 20)
    assert round_of_step(other, 20, 2 << 20) == 1
    assert round_of_step(store, 10) == 1

    # A note, and then a manifest, that do not fit.
    save_with_the_note_too_much(store, path)
    save(store, 30, 1)
    fill(path / "filler")
    with pytest.raises(StorageFailed, match="ENOSPC"):
        commit(store, 30)
    assert newest_manifest(store, Said()).step == 10
    assert not [*path.glob("*/.*.tmp")]
    (path / "filler").unlink()
    assert commit(store, 30)
    assert (committed_steps(store, Said()), round_of_step(store, 30)) == ((10, 30), 1)

    # Read-only: it still can be read.
    subprocess.run(("mount", "-o", "remount,ro", path), check=True, timeout=20)
    with pytest.raises(StorageFailed, match=r"mounted read-only.*EROFS"):
        save(store, 40, 0)
    assert (round_of_step(store, 10), round_of_step(store, 30)) == (1, 1)


def save_with_the_note_too_much(store, path):
    """Save a shard of rank 0, behind which the disk is full; then there is room again."""
    met = []

    def failpoint(place):
        met.append(place)
        if met.count("unlinked") == 1 and place == "unlinked":
            fill(path / "filler")

    with pytest.raises(StorageFailed, match="ENOSPC"):
        save(PosixStore(path, failpoint=failpoint), 30, 0)
    assert [file.name for file in (path / "step-0000000030").iterdir()] == ["rank-00000.safetensors"]
    (path / "filler").unlink()
    save(store, 30, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
