"""The owners of the arenas in a folder, which arenas are left over, and how much memory there is."""

import os
import secrets
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import ArenaLocks, ShmAllocation, boot_id, find, leftovers, limits
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, VERSION, Identity, identity_page
from turnout.launcher.checkpoint.format.shard_file import sum_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat, NoMemory

OURS = Identity("run", "w-0", 0, boot_id(), 3)


def make_file(folder, identity=OURS):
    """An arena that lies there and that nobody has open."""
    arena = Arena.make(folder, identity)
    arena.close()
    return arena.path


def planted(folder, identity=OURS, mode=0o600, size=4 * PAGE_BYTES, flip=None):
    """A file as somebody else may have put it there."""
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    data = bytearray(identity_page(identity).ljust(size, b"\0")[:size])
    if flip is not None:
        data[flip] ^= 1
    path.write_bytes(data)
    path.chmod(mode)
    return path


def link(folder):
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    target = planted(folder).rename(folder / "aside")
    path.symlink_to(target)
    return path


def pipe(folder):
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    os.mkfifo(path, 0o600)
    return path


def of_another_user(folder):
    path = planted(folder)
    os.chown(path, 12_345, 12_345)
    return path


def nested(folder):
    path = folder / f"turnout-{secrets.token_hex(16)}.arena"
    path.mkdir(mode=0o600)
    return path


def test_an_arena_has_a_random_name_and_is_of_its_user_alone(tmp_path):
    paths = {make_file(tmp_path), make_file(tmp_path)}
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert all(path.stat().st_blocks * 512 < 65_536 for path in paths)  # four pages each, and no data yet


def test_a_worker_finds_its_own_arenas_by_local_rank(tmp_path):
    second, first = make_file(tmp_path, replace(OURS, local_rank=1)), make_file(tmp_path)
    for other in (replace(OURS, run="run-2"), replace(OURS, worker="w-1")):
        make_file(tmp_path, other)
    (tmp_path / "turnout-readme").write_text("of no concern")
    events = []
    assert [found.path for found in find(tmp_path, "run", "w-0", events.append)] == [first, second]
    assert events == []


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        pytest.param(of_another_user, "is no file of this user", id="of another user"),
        pytest.param(lambda folder: planted(folder, mode=0o640), "and of mode 0600", id="that others may read"),
        pytest.param(lambda folder: planted(folder, flip=20), "does not have the sum", id="with a flipped bit"),
        pytest.param(lambda folder: planted(folder, size=0), "does not begin as one", id="without a byte"),
        pytest.param(lambda folder: planted(folder, size=2 * PAGE_BYTES), "is too short for 3", id="that was cut"),
        pytest.param(link, "it is a link", id="that is a link"),
        pytest.param(pipe, "is no file of this user", id="that is a pipe"),
        pytest.param(nested, "cannot be opened: Is a directory", id="that is a folder"),
        pytest.param(
            lambda folder: make_file(folder, replace(OURS, boot="earlier")),
            "before this machine was started",
            id="too old",
        ),
    ],
)
def test_a_file_is_passed_over_and_told(tmp_path, plant, why):
    path, messages = plant(tmp_path), []
    assert find(tmp_path, "run", "w-0", messages.append) == []
    (text,) = messages
    assert str(path) in text
    assert why in text
    if "started" not in why:
        with pytest.raises(BadCheckpoint, match=why):
            Arena.open(path)
        assert leftovers(tmp_path, "another run") == []
    assert path.exists() or path.is_symlink()


def test_an_arena_of_a_newer_format_is_told_from_a_broken_one(tmp_path):
    path = planted(tmp_path)
    page = bytearray(path.read_bytes()[: PAGE_BYTES - 8])
    page[7] += 1
    path.write_bytes((page + struct.pack("<Q", sum_of(page))).ljust(path.stat().st_size, b"\0"))
    with pytest.raises(NewerFormat, match=str(path)) as caught:
        Arena.open(path)
    assert caught.value.format == VERSION + 1


def test_a_folder_that_is_not_there_has_no_arenas(tmp_path):
    events = []
    assert find(tmp_path / "nowhere", "run", "w-0", events.append) == []
    assert "cannot be read" in events[0]


def test_left_over_is_what_nobody_uses_of_another_run_or_boot(tmp_path):
    ours, other_run = make_file(tmp_path), make_file(tmp_path, replace(OURS, run="run-2"))
    other_boot = make_file(tmp_path, replace(OURS, boot="earlier"))
    used = Arena.make(tmp_path, replace(OURS, run="run-3"))
    assert leftovers(tmp_path, "run") == sorted([other_run, other_boot])
    used.close()
    assert leftovers(tmp_path, "run") == sorted([other_run, other_boot, used.path])
    assert leftovers(tmp_path, "run-2", "earlier") == sorted([ours, other_run, other_boot, used.path])
    assert len(list(tmp_path.iterdir())) == 4


def test_an_arena_is_in_use_until_the_last_process_that_has_it_open_ends(tmp_path):
    path = make_file(tmp_path)
    code = (
        "import sys; from turnout.launcher.checkpoint.arena.arena import Arena;"
        "a = Arena.open(sys.argv[1]); print(); input()"
    )
    root = Path(__file__).resolve().parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", code, path], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        assert leftovers(tmp_path, "another") == []
        other.kill()
        other.wait()
    assert leftovers(tmp_path, "another") == [path]


def tree(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_at_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))


@pytest.mark.parametrize(
    ("files", "left", "limit"),
    [
        pytest.param({"own__cgroup": "0::/"}, None, None, id="no limit anywhere"),
        pytest.param(
            {"own__cgroup": "0::/", "memory_at_max": 900, "memory_at_current": 500}, 400, 900, id="version 2, in a pod"
        ),
        pytest.param(
            {"own__cgroup": "0::/a/b", "a__memory_at_max": 700, "a__memory_at_current": 600,
             "a__b__memory_at_max": 500, "a__b__memory_at_current": 100},
            100, 700, id="a group above leaves less",
        ),
        pytest.param(
            {"own__cgroup": "0::/", "memory_at_max": "max", "memory_at_current": 500}, None, None, id="max is no limit"
        ),
        pytest.param(
            {"own__cgroup": "0::/", "memory_at_max": 900, "memory_at_current": 950}, 0, 900, id="all is used"
        ),
        pytest.param(
            {"own__cgroup": "0::/", "memory_at_max": 900, "memory_at_current": 500,
             "memory_at_stat": "anon 7\ninactive_file 300\nactive_file 5"},
            700, 900, id="what files only cache is given back",
        ),
        pytest.param(
            {"own__cgroup": "5:cpu:/x\n4:memory:/not/seen/from/here\n0::/", "memory__memory_at_limit_in_bytes": 900,
             "memory__memory_at_usage_in_bytes": 500, "memory__memory_at_stat": "total_inactive_file 100"},
            500, 900, id="version 1, whose root is the pod's own group",
        ),
        pytest.param(
            {"own__cgroup": "4:memory:/", "memory__memory_at_limit_in_bytes": 9223372036854771712,
             "memory__memory_at_usage_in_bytes": 5}, None, None, id="version 1 without a limit",
        ),
    ],
)  # fmt: skip
def test_what_is_left_of_the_pods_memory(tmp_path, files, left, limit):
    tree(tmp_path, **files)
    found_limits = limits(tmp_path, groups=tmp_path, own=tmp_path / "own")
    assert (found_limits.cgroup_left_bytes, found_limits.cgroup_bytes) == (left, limit)
    assert 0 < found_limits.free_bytes <= found_limits.size_bytes


MEMINFO = "MemTotal:       100 kB\nMemFree:          5 kB\nMemAvailable:    40 kB\nSwapFree:        90 kB"


@pytest.mark.parametrize(("files", "available"), [
    pytest.param({"own__cgroup": "0::/", "meminfo": MEMINFO}, 40 << 10, id="no limit for the pod: what is available"),
    pytest.param(
        {"own__cgroup": "0::/", "meminfo": MEMINFO, "memory_at_max": 900, "memory_at_current": 5}, None,
        id="the pod's limit says it",
    ),
    pytest.param({"own__cgroup": "0::/", "meminfo": "MemTotal: 100 kB"}, None, id="a kernel that does not say so"),
    pytest.param({"own__cgroup": "0::/"}, None, id="nobody says so"),
])  # fmt: skip
def test_what_the_machine_has_available(tmp_path, files, available):
    tree(tmp_path, **files)
    found_limits = limits(tmp_path, groups=tmp_path, own=tmp_path / "own", machine=tmp_path / "meminfo")
    assert found_limits.available_bytes == available


@pytest.mark.parametrize(("kind", "available"), [("tmpfs", 40 << 10), ("ext4", None)])
def test_only_what_takes_memory_is_limited_by_it(tmp_path, kind, available):
    device = os.stat(tmp_path).st_dev
    mounts = f"1 0 0:1 / / rw - proc p rw\n9 1 {os.major(device)}:{os.minor(device)} / /x rw shared:3 - {kind} none rw"
    tree(tmp_path, own__cgroup="0::/", own__mountinfo=mounts, meminfo=MEMINFO)
    found_limits = limits(tmp_path, groups=tmp_path, own=tmp_path / "own", machine=tmp_path / "meminfo")
    assert found_limits.available_bytes == available


def test_a_file_system_in_memory_that_is_larger_than_what_is_left(tmp_path):
    """Such a file system would take the bytes, and the kernel would end processes: none of them is taken."""
    tree(tmp_path, own__cgroup="0::/", meminfo=MEMINFO)
    path = tmp_path / "arena"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    locks = ArenaLocks(file)
    try:
        limits_of = partial(limits, groups=tmp_path, own=tmp_path / "own", machine=tmp_path / "meminfo")
        with ShmAllocation(path, file, locks, limits_of).allocator() as take:
            take("generation 0", 0, 0, 40 << 10)
            with pytest.raises(NoMemory, match="only 40960 bytes of memory available"):
                take("generation 1", 40 << 10, 4096, (44 << 10) + 1)
        assert os.fstat(file).st_size == 40 << 10
    finally:
        locks.close()
        os.close(file)


def test_the_limits_of_this_machine_are_numbers():
    found_limits = limits("/dev/shm")
    assert 0 < found_limits.free_bytes <= found_limits.size_bytes
