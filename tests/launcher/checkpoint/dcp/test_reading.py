"""A reader of torch.distributed.checkpoint: the steps that it finds in memory and in storage, and what it reads of
them.
"""

import os

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from hack.bench.checkpoint.scenes.reshard import shard_tensors
from tests.launcher.checkpoint.dcp.alone import a_state, same
from turnout.launcher.checkpoint.dcp.writer import FlashStorageWriter
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


def test_nothing_stored_is_false_and_is_not_loaded(single_process):
    reader = single_process.reader()
    assert not reader
    with pytest.raises(BadCheckpoint, match="nothing is stored here"):
        reader.read_metadata()


def test_a_missing_step_is_false_too_and_the_newest_is_the_default(single_process):
    for step in (1, 2):
        single_process.save(step, float(step))
    single_process.forget()
    assert not single_process.reader(3)
    assert single_process.reader().step == 2
    assert same(single_process.load(), 2.0)
    assert same(single_process.load(single_process.reader(1)), 1.0)


def test_a_reader_stays_with_its_step(single_process):
    single_process.save(1)
    single_process.forget()
    reader = single_process.reader()
    assert reader
    single_process.save(2, 2.0).wait(60)
    assert same(single_process.load(reader), 1.0)


def test_memory_alone_serves_the_process_that_saved(single_process):
    single_process.save(5, 5.0, disk=False)
    assert same(single_process.load(), 5.0)
    assert not single_process.folder.exists()


def test_broken_memory_is_told_and_the_same_save_read_from_storage(single_process, memory, caplog):
    single_process.save(5, 5.0).wait(60)
    reader = single_process.reader()
    assert reader
    mark, found = a_state(5.0)["w"].numpy().tobytes(), 0
    with next(memory.glob("*.arena")).open("r+b") as file:
        for generation in range(1, 4):
            file.seek(generation << 40)
            at = file.read(1 << 20).find(mark)
            if at >= 0:
                file.seek((generation << 40) + at)
                file.write(b"\xff")
                found += 1
    assert found == 1
    assert same(single_process.load(reader), 5.0)
    assert "memory_passed_over" in caplog.text


def test_a_flipped_byte_is_found_wherever_it_is(single_process):
    single_process.save()
    single_process.forget()
    content = single_process.shard.read_bytes()
    for at in (*range(0, len(content), 211), len(content) - 1):
        single_process.shard.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((BadCheckpoint, CheckpointException), match="not what was written"):
            single_process.load()
    single_process.shard.write_bytes(content)
    assert same(single_process.load(), 1.0)


def test_a_tensor_of_many_chunks_is_read_in_parts(single_process):
    rows = torch.arange(3 * CHUNK_BYTES // 8 + 1_000).view(-1, 8)
    state = {"a": torch.ones(5), "rows": rows, "z": torch.ones(7)}
    dcp.save(state, storage_writer=FlashStorageWriter(single_process.folder, step=1, environ=single_process.environ))
    single_process.forget()
    dcp.load(
        found := {name: torch.zeros_like(each) for name, each in state.items()}, storage_reader=single_process.reader()
    )
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_part_is_read_alone_and_by_whole_chunks_where_no_note_says_more(single_process):
    rows = torch.arange(CHUNK_BYTES).view(-1, 1 << 10)  # 4 MiB of them for each of 8 ranks, behind a head

    def loaded(rank):
        state = shard_tensors({"rows": torch.zeros_like(rows)}, rank, 8)
        dcp.load(state, storage_reader=single_process.reader())
        return torch.equal(state["rows"].to_local(), rows.chunk(8)[rank])

    dcp.save(
        {"rows": rows}, storage_writer=FlashStorageWriter(single_process.folder, step=1, environ=single_process.environ)
    )
    single_process.forget()
    with single_process.shard.open("r+b") as file:  # of rank 1, in the chunk in which rank 0's rows end
        os.pwrite(file.fileno(), b"\xff", 6 << 20)
    assert all(map(loaded, (0, 3)))
    with pytest.raises(CheckpointException, match="block 24, at byte 6291456, is not what was written"):
        loaded(1)
    single_process.shard.with_suffix(".json").unlink()  # its note
    with pytest.raises(CheckpointException, match="chunk 1, at byte 4194304, is not what was written"):
        loaded(0)
    assert loaded(3)
