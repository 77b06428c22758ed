"""The stacks of all ranks, as they come to the coordinator's worker: folded, written, and who the others wait for."""

import asyncio
import json
import zlib

import pytest

from turnout.launcher.health.hang_detector import HangPolicy
from turnout.launcher.health.stack_traces.parse import MAX_BYTES, write
from turnout.launcher.health.stack_traces.stack_tree import MAX_RANKS
from turnout.launcher.rendezvous.state import MergeStacks
from turnout.launcher.rendezvous.transport.merge_stacks import StackMerge, pack


def standing_in(function, state="S"):
    """The file of a rank whose main thread stands in this function."""
    dump = f'Current thread 0x02 (most recent call first):\n  File "train.py", line 7 in {function}\n'
    return write("faulthandler", dump, state)


WAITS, SLEEPS = standing_in("all_reduce"), standing_in("fetch")
STOPPED, STOPPED_AND_SHOWN = write("", "", "T", "it does not answer"), standing_in("all_reduce", "T")
HELD, READS = write("", "", "D", "it does not answer"), standing_in("all_reduce", "D")
ENDED = write("", "", "", "the process has ended")


def merged(folder, stacks, world=4, why=None):
    messages = []
    merging = StackMerge(HangPolicy(folder=str(folder)), lambda what, fields: messages.append((what, fields)))
    return asyncio.run(merging.merge(MergeStacks(7, world, stacks, why or {}))), messages


@pytest.mark.parametrize(
    ("odd", "suspects"),
    [
        pytest.param(pack(SLEEPS), (3,), id="who stands elsewhere"),
        pytest.param(pack(STOPPED), (3,), id="who is stopped"),
        pytest.param(pack(STOPPED_AND_SHOWN), (3,), id="and may be seen into"),
        pytest.param(pack(HELD), (3,), id="whom the kernel holds"),
        pytest.param(pack(READS), (), id="not who only reads"),
        pytest.param(pack(ENDED), (), id="not who has ended"),
        pytest.param(b"no zlib", (), id="not who sent what cannot be read"),
        pytest.param(pack(SLEEPS)[:-6], (), id="or what is cut"),
        pytest.param(zlib.compress(bytes(MAX_BYTES + 1)), (), id="or what is too large"),
        pytest.param(pack(WAITS), (), id="nobody where all stand in one place"),
    ],
)
def test_whom_the_others_wait_for(tmp_path, odd, suspects):
    found, ((what, fields),) = merged(tmp_path, {rank: pack(WAITS) for rank in range(3)} | {3: odd})
    assert (found.number, found.suspects) == (7, suspects)
    assert (what, fields["apart"], fields["shown"]) == ("stacks_gathered", list(suspects), 4)


def test_files_of_every_rank_and_of_the_whole_lie_in_the_folder(tmp_path):
    merged(tmp_path / "stacks", {0: pack(WAITS), 1: pack(SLEEPS)}, 3, {2: "it did not answer"})
    assert (tmp_path / "stacks" / "00001-00003.stacktrace").read_bytes() == SLEEPS
    document = json.loads((tmp_path / "stacks" / "stacks.json").read_text())
    assert (document["silent"], document["why_silent"]) == ("2", {"it did not answer": "2"})


def test_an_unwritable_folder_is_told_and_the_hang_is_dealt_with(tmp_path):
    (tmp_path / "file").write_text("")
    found, messages = merged(tmp_path / "file", {rank: pack(WAITS) for rank in range(3)} | {3: pack(SLEEPS)})
    assert found.suspects == (3,)
    assert [what for what, _ in messages] == ["stacks_gathered", "stacks_lost"]


@pytest.mark.parametrize("world", [2, MAX_RANKS + 1])
def test_where_nothing_is_shown_nobody_is_named(tmp_path, world):
    found, _ = merged(tmp_path, {}, world)
    assert found.suspects == ()
    assert found.verdict
