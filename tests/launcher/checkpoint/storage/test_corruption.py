"""Bytes in storage that are not what was written: always found, never loaded."""

import os
import shutil
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.launcher.checkpoint.storage.world import SMALL_BYTES, Said, commit, round_of_step, save, save_all
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import load, manifest_of, newest_manifest, verify
from turnout.launcher.errors import BadCheckpoint, LauncherError

SHARD_BYTES = 32 << 10
LARGE_BYTES = 9 << 20  # three chunks


@pytest.fixture
def store(folder):
    """Two committed steps, 10 and 20, of two ranks and 64 KiB each."""
    store = PosixStore(folder)
    save_all(store, 10)
    save_all(store, 20)
    return store


def file_of(store, name, step=20):
    return store.path / f"step-{step:010}" / name


@contextmanager
def opened(path):
    file = os.open(path, os.O_RDWR)
    try:
        yield file
    finally:
        os.close(file)


def flips(path):
    """Flip one bit of each byte in turn, another one each time; before the next the byte is as it was."""
    content = path.read_bytes()
    with opened(path) as file:
        for at, byte in enumerate(content):
            os.pwrite(file, bytes([byte ^ 1 << at % 8]), at)
            yield at
            os.pwrite(file, bytes([byte]), at)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_a_shard(store, rank):
    manifest, into = newest_manifest(store, Said()), memoryview(bytearray(SHARD_BYTES))
    unseen, count = [], 0
    for at in flips(file_of(store, f"rank-{rank:05}.safetensors")):
        count += 1
        try:
            load(store, manifest, rank, into)
            unseen.append(at)
        except BadCheckpoint:
            pass
    assert (count, unseen) == (SHARD_BYTES, [])
    assert round_of_step(store, 20) == 1


def test_every_byte_of_a_manifest(store):
    count = 0
    for at in flips(file_of(store, "manifest.json")):
        count, messages = count + 1, Said()
        found = newest_manifest(store, messages)
        assert (found.step, messages.steps("checkpoint_passed_over")) == (10, [20]), at
    assert count > 300


@pytest.mark.parametrize("rank", [0, 1])
def test_every_byte_of_a_note(store, rank):
    file_of(store, "manifest.json").unlink()
    count = 0
    for at in flips(file_of(store, f"rank-{rank:05}.json")):
        count, messages = count + 1, Said()
        assert commit(store, 20, say=messages) is None, at
        assert messages.words() == ["note_passed_over"], at
    assert count > 150
    assert commit(store, 20)
    assert round_of_step(store, 20) == 1


@pytest.mark.parametrize("name", ["manifest.json", "rank-00000.json"])
def test_every_length_of_a_manifest_or_a_note_that_is_cut_short(store, name):
    file, content = file_of(store, name), file_of(store, name).read_bytes()
    if name != "manifest.json":
        file_of(store, "manifest.json").unlink()
    for size in range(len(content)):
        file.write_bytes(content[:size])
        assert commit(store, 20) is None if name != "manifest.json" else newest_manifest(store, Said()).step == 10, size


@given(at=st.integers(0, 4_095 + LARGE_BYTES), bit=st.integers(0, 7))
@settings(max_examples=scaled(25))
def test_any_bit_of_a_shard_of_several_chunks(large, at, bit):
    with opened(file_of(large, "rank-00000.safetensors", 10)) as file:
        byte = os.pread(file, 1, at)
        os.pwrite(file, bytes([byte[0] ^ 1 << bit]), at)
        with pytest.raises(BadCheckpoint, match=f"chunk {at >> 22}, at byte"):
            verify(large, 10)
        os.pwrite(file, byte, at)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    store = PosixStore(tmp_path_factory.mktemp("large"))
    save_all(store, 10, world=1, size_bytes=LARGE_BYTES)
    assert round_of_step(store, 10, LARGE_BYTES) == 1
    return store


def swap(store):
    one, other = (file_of(store, f"rank-{rank:05}.safetensors") for rank in (0, 1))
    one.rename(store.path / "aside")
    other.rename(one)
    (store.path / "aside").rename(other)


def older_shard(store):
    shutil.copyfile(file_of(store, "rank-00001.safetensors", 10), file_of(store, "rank-00001.safetensors"))


def cut(size):
    return lambda store: os.truncate(file_of(store, "rank-00001.safetensors"), size)


def longer(store):
    with file_of(store, "rank-00001.safetensors").open("ab") as file:
        file.write(b"\0")


def link(store):
    shard = file_of(store, "rank-00001.safetensors")
    shutil.move(shard, store.path / "elsewhere")
    shard.symlink_to(store.path / "elsewhere")


def pipe(store):
    file_of(store, "rank-00001.safetensors").unlink()
    os.mkfifo(file_of(store, "rank-00001.safetensors"))


def older_manifest(store):
    shutil.copyfile(file_of(store, "manifest.json", 10), file_of(store, "manifest.json"))


def link_to_manifest(store):
    file_of(store, "manifest.json").rename(store.path / "elsewhere")
    file_of(store, "manifest.json").symlink_to(store.path / "elsewhere")


def link_to_step(store):
    (store.path / "step-0000000020").rename(store.path / "elsewhere")
    (store.path / "step-0000000020").symlink_to(store.path / "elsewhere")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(cut(0), id="an empty shard"),
        pytest.param(cut(4_096), id="a shard that ends behind its head"),
        pytest.param(cut(SHARD_BYTES - 1), id="a shard that lacks a byte"),
        pytest.param(longer, id="a shard with a byte more"),
        pytest.param(lambda store: file_of(store, "rank-00001.safetensors").unlink(), id="a shard that is gone"),
        pytest.param(link, id="a symbolic link in place of a shard, to the very bytes"),
        pytest.param(pipe, id="a pipe in place of a shard"),
        pytest.param(older_manifest, id="the manifest of an older step"),
        pytest.param(link_to_manifest, id="a symbolic link in place of a manifest"),
        pytest.param(link_to_step, id="a symbolic link in place of a step"),
        pytest.param(lambda store: file_of(store, "manifest.json").unlink(), id="no manifest"),
    ],
)
def test_damage_seen_without_reading_shards_makes_the_older_step_newest(store, harm):
    messages = Said()
    harm(store)
    assert newest_manifest(store, messages).step == 10
    assert messages.steps("checkpoint_passed_over") == [20]
    with pytest.raises(LauncherError):
        verify(store, 20)
    assert round_of_step(store, 10) == 1


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(swap, id="two ranks' shards in one another's place"),
        pytest.param(older_shard, id="a shard of an older step"),
    ],
)
def test_what_is_seen_by_reading_raises_and_the_older_step_is_whole(store, harm):
    harm(store)
    manifest = newest_manifest(store, Said())
    assert manifest.step == 20
    with pytest.raises(BadCheckpoint, match=r"rank-0000[01]"):
        verify(store, 20)
    with pytest.raises(BadCheckpoint, match="rank-00001"):
        load(store, manifest, 1)
    assert round_of_step(store, 10) == 1


def test_a_note_is_no_other_rank_s_and_no_other_step_s(store):
    file_of(store, "manifest.json").unlink()
    mine = file_of(store, "rank-00001.json").read_bytes()
    for other in (file_of(store, "rank-00000.json"), file_of(store, "rank-00001.json", 10)):
        shutil.copyfile(other, file_of(store, "rank-00001.json"))
        assert commit(store, 20) is None
    file_of(store, "rank-00001.json").write_bytes(mine)
    assert commit(store, 20)


def test_a_buffer_of_another_size_is_refused(store):
    with pytest.raises(ValueError, match="do not go into"):
        load(store, manifest_of(store, 20), 0, memoryview(bytearray(SHARD_BYTES - 1)))


def test_a_shard_is_a_safetensors_file(store):
    from safetensors import safe_open

    with safe_open(file_of(store, "rank-00001.safetensors"), "numpy") as file:
        assert file.metadata() == {"rank": "1"}
        assert file.get_tensor("weight").nbytes == SMALL_BYTES


def test_what_is_stored_is_for_its_owner_alone(store):
    save(store, 30, 0)
    assert {oct(file.stat().st_mode & 0o777) for file in store.path.glob("*/*")} == {"0o600"}
