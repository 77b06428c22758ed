"""Formats that users' storage and memory may hold: each that was ever written is read, today's among them.

The checkpoints lie in formats/, and writes.py says how they come there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.launcher.checkpoint.engine.golden.writes import GENERATION, OWNER, SEED, STEP, WRITERS, parts, sharded, state
from tests.launcher.checkpoint.engine.states import same
from tests.launcher.checkpoint.storage.world import Said, commit, save, save_all
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.dcp import metadata
from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader
from turnout.launcher.checkpoint.engine.save_plan import state_of
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, offset_of, read_identity
from turnout.launcher.checkpoint.format.manifest import Latest, read, read_note, write, write_note
from turnout.launcher.checkpoint.format.shard_file import sum_of, sums_of
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import newest_manifest
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.flash_checkpoint import DdpCheckpointer, FsdpShardCheckpointer
from turnout.launcher.flash_checkpoint.named_parts import Parts

ROOT = Path(__file__).resolve().parents[5]
FORMATS = Path(__file__).with_name("formats")
GOLDEN = sorted(each.name for each in FORMATS.iterdir())
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")]


@pytest.fixture
def golden(tmp_path):
    """A copy of one of them."""
    return lambda name: Path(shutil.copytree(FORMATS / name, tmp_path / name))


def test_each_format_that_is_written_has_a_golden_checkpoint():
    missing = sorted({*WRITERS} - {*GOLDEN})
    assert missing == [], (
        "add it: python -m tests.launcher.checkpoint.engine.golden.writes "
        "tests/launcher/checkpoint/engine/golden/formats"
    )


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("storage")])
def test_a_state_comes_back_from_storage_and_random_numbers_go_on(golden, make, name):
    torch.manual_seed(SEED + 1)
    loaded = make(golden(name)).load()
    assert (loaded.step, same(state(), loaded.state)) == (STEP, True)
    if name != "storage-1-dc08380":  # it kept none yet
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(SEED)))


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("dcp")])
def test_a_state_of_two_ranks_comes_back_to_one(golden, environ, name):
    reader = FlashStorageReader(golden(name), environ=environ)
    found, expected = sharded(), sharded()
    for tensor in (*found["model"].values(), found["optim"]["state"]["0"]["step"]):
        tensor.zero_()
    found["list"], found["optim"]["betas"] = [0.0, 1, ""], ()
    dcp.load(found, storage_reader=reader)
    assert (reader.step, same(expected, found)) == (STEP, True)
    memories.close()


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("parts")])
def test_parts_come_back(golden, environ, name):
    found = Parts(golden(name), environ=environ).load(bool)
    assert (found.step, same(parts(), dict(found.parts))) == (STEP, True)
    memories.close()


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("torch")])
def test_a_file_of_torch_is_found_and_comes_back(golden, environ, name, memory):
    checkpoints = DdpCheckpointer(golden(name), environ=environ)
    assert same(state(), checkpoints.load_checkpoint())
    checkpoints.close()


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("arena")])
def test_an_arena_is_read(memory, name):
    arena = laid(memory, name)
    (slot,) = arena.slots()
    shard = arena.map(0, slot.record.shard_bytes)
    assert (arena.identity, slot.record.step, slot.record.round) == (OWNER, STEP, 1)
    assert tuple(sums_of(shard)) == arena.sums(0)
    assert same(state(), state_of(shard))
    arena.close()


def laid(memory, name):
    """Lay a generation as it was in memory: it begins a terabyte after its pages."""
    file = memory / f"turnout-{'0' * 32}.arena"
    with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as out:
        out.write((FORMATS / name / "pages").read_bytes())
        out.seek(offset_of(0))
        out.write((FORMATS / name / GENERATION).read_bytes())
    return Arena.open(file)


@pytest.fixture(scope="module")
def today(tmp_path_factory):
    """All of them, written now, in a process of its own."""
    folder = tmp_path_factory.mktemp("today")
    done = subprocess.run(
        [sys.executable, "-m", "tests.launcher.checkpoint.engine.golden.writes", str(folder)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def files(folder):
    """Read what must not differ, by file name: torch files themselves are left out, and so are times and checksums."""
    found = {str(each.relative_to(folder)): each for each in sorted(folder.rglob("*")) if each.is_file()}
    return {name: plain(each) for name, each in found.items()}


def plain(file):
    data = file.read_bytes()
    if file.suffix == ".pt":
        return b""
    if file.suffix == ".json":
        data = re.sub(rb'"own-[0-9a-f]{32}"', b'"own"', data)
        data = re.sub(rb'"sums":\[[0-9,]+\]', b'"sums":[]', data)
        data = re.sub(rb'"packed":"[^"]*"', b'"packed":""', data)  # sums, too
        return re.sub(rb'"(sum|sums_sum|saved_s|bytes)":"?[0-9a-f.]+"?', rb'"\1":0', data)
    for word in re.findall(rb"save\W{1,9}([0-9a-f]{32})", data):  # that no two saves share
        data = data.replace(word, b"0" * 32)
    return data


@pytest.mark.skipif(not metadata.HAS_STRIDES, reason="torch 2.6 knows less of a tensor, and so writes less")
@pytest.mark.parametrize("name", WRITERS)
def test_today_the_same_bytes_are_written(today, name):
    assert files(today / name) == files(FORMATS / name), "a format that changes has a new version, and a golden one"


@pytest.mark.parametrize("name", [name for name in GOLDEN if not name.startswith(("torch", "arena"))])
def test_manifests_and_notes_are_read_and_written_the_same(name):
    for file in (FORMATS / name).rglob("*.json"):
        write_again = (read, write) if file.name == "manifest.json" else (read_note, write_note)
        assert write_again[1](write_again[0](file.read_bytes())) == file.read_bytes()


def newer(text):
    """Give the manifest in the next format, with the right checksum."""
    version, what, plain = re.fullmatch(rb'\{"sum":"\w+","version":(\d+),"(\w+)":(.*)\}', text).groups()
    version = int(version) + 1
    return b'{"sum":"%016x","version":%d,"%b":%b}' % (
        sum_of(b"%b %d %b" % (what, version, plain)), version, what, plain,
    )  # fmt: skip


def with_a_newer_one(folder):
    """A step of today's format, and after it one of the next."""
    step = shutil.copytree(folder / f"step-{STEP:010}", folder / f"step-{STEP + 1:010}")
    for file in step.glob("*.json"):
        text = file.read_bytes().replace(b'"step":%d' % STEP, b'"step":%d' % (STEP + 1))
        file.write_bytes(newer(text))
    return folder


FILES = ("manifest.json", "rank-00000.safetensors", "rank-00000.json")
NEWER = rf"step {STEP + 1} in .*: a manifest of format 2: this Turnout knows formats up to 1; install the one that"


def test_a_newer_format_is_refused_by_name_and_nothing_older_is_read_as_it(golden, make, environ):
    folder = with_a_newer_one(golden("storage-1"))
    with pytest.raises(NewerFormat, match=NEWER):
        make(folder).load()
    folder = with_a_newer_one(golden("dcp-1"))
    with pytest.raises(NewerFormat, match=NEWER):
        bool(FlashStorageReader(folder, environ=environ))
    with pytest.raises(NewerFormat, match=NEWER):
        FsdpShardCheckpointer(folder, environ=environ).get_storage_reader()
    assert FlashStorageReader(folder, step=STEP, environ=environ).step == STEP
    memories.close()


def test_a_step_of_a_newer_format_is_neither_removed_nor_written_over(golden, make):
    store = PosixStore(with_a_newer_one(golden("storage-1")))
    manifest, shard, note = (store.path / f"step-{STEP + 1:010}" / name for name in FILES)
    before = manifest.read_bytes(), shard.read_bytes()
    save_all(store, STEP + 2, world=1)
    assert newest_manifest(store, Said()).step == STEP + 2
    assert remove_old_steps(store, Latest(1), Said()) == (STEP,)
    with pytest.raises(StorageFailed, match="step 4 of rank 0 is kept: a note of format 2"):
        save(store, STEP + 1, 0, world=1)
    note.unlink()
    save(store, STEP + 1, 0, world=1)
    with pytest.raises(StorageFailed, match=r"the existing manifest is kept: step 4 in .*: a manifest of format 2"):
        commit(store, STEP + 1, world=1)
    assert (manifest.read_bytes(), shard.read_bytes()) == before


def test_what_a_newer_format_has_saved_of_an_old_step_is_not_swept(golden):
    """A newer version saves the step again, and has written its shard and its note; the old manifest still holds."""
    store = PosixStore(golden("storage-1"))
    step = store.path / f"step-{STEP:010}"
    _, shard, note = (step / name for name in FILES)
    second_copy = shutil.copy(shard, step / "rank-00000.2.safetensors")
    note.write_bytes(newer(note.read_bytes().replace(shard.name.encode(), second_copy.name.encode())))
    before = note.read_bytes()
    assert sweep(store, time.time() + 1e6, Said(), older_than_s=0.0) == ()
    save_all(store, STEP + 1, world=1)
    assert remove_old_steps(store, Latest(1), Said()) == (STEP,)
    assert (second_copy.exists(), note.read_bytes()) == (True, before)


def test_an_arena_of_a_newer_format_is_refused(memory):
    page = bytearray((FORMATS / "arena-1" / "pages").read_bytes()[:PAGE_BYTES])
    page[7] += 1
    with pytest.raises(BadCheckpoint, match="does not have the sum"):
        read_identity(page)
    page[-8:] = sum_of(page[:-8]).to_bytes(8, "little")
    with pytest.raises(NewerFormat, match="an arena of format 2: this Turnout knows formats up to 1"):
        read_identity(page)


def test_metadata_of_a_newer_format_is_refused_whatever_else_it_has():
    with pytest.raises(NewerFormat, match="the metadata of a checkpoint of format 2"):
        metadata.read(json.dumps({"version": 2, "what": ["nobody", "knows"]}).encode())
