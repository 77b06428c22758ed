"""Every scene of the checkpoint benchmark really runs, on a state too small to measure; what is loaded is equal."""

import copy
import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.bench.__main__ import as_json
from hack.bench.checkpoint.lower_bound import MemoryCopy, WarmMemory, split
from hack.bench.checkpoint.plan import SceneResult
from hack.bench.checkpoint.results import BROKE, CheckpointResults
from hack.bench.checkpoint.run import LARGE, SMALL, SMALLEST, TINY, run_scenes
from hack.bench.checkpoint.scenes.runner import SCENES
from hack.bench.checkpoint.scenes.sockets import seconds_of
from hack.bench.checkpoint.scenes.stalls import BASELINES, last_tensors
from hack.bench.checkpoint.state import bytes_of, differ, make, tensors

FLOORS = ["floor 1", "floor 2"]
ROWS = {
    "first save": [*FLOORS, *BASELINES, "dcp.async_save: second", "ours", "ours: prepare", "ours, not prepared"],
    "the saves after it": [
        *FLOORS,
        "floor 2, 5%",
        "torch.save",
        "dcp.save",
        "dcp.async_save, stager reused",
        "ours",
        "ours, as many tensors of few bytes",
    ],
    "what one save adds": [
        "floor 1",
        "a bare memcpy on the other core",
        "dcp.async_save, stager reused",
        "ours, blocking",
        "ours",
        "ours: both cores busy",
    ],
    "the step right after": ["a step alone", "a bare memcpy on the other core: a step while it is copied"],
    "a step on one core": ["a step alone", "dcp.async_save, stager reused", "ours"],
    "load what another": ["2 -> 3"],
    "what one rank saved": ["floor 1: in its own world", "torch.load: in its own world", "ours: in its own world"],
    "bytes into a peer": ["floor: loopback socket", "ours, replica"],
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as memory:
        yield Path(memory), tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def outcome(places):
    return run_scenes(SMALLEST, *places)


@pytest.fixture(scope="module")
def rows(outcome):
    """The rows of each table by their first column; the tables by the first words of their titles."""
    tables = {table.title: {row[0]: row for row in table.rows} for table in outcome.tables}
    return {words: next(rows for title, rows in tables.items() if title.startswith(words)) for words in ROWS}


@pytest.mark.long
@pytest.mark.parametrize("words", ROWS)
def test_every_table_has_every_row(rows, words):
    assert [name for name in ROWS[words] if name not in rows[words]] == []


@pytest.mark.long
def test_floors_and_anchors_were_measured(rows):
    measured_ = {name for found in rows.values() for name, row in found.items() if row[1]}
    theirs = {name for names in ROWS.values() for name in names if not name.startswith("ours")}
    assert theirs - measured_ == set()


@pytest.mark.long
def test_a_row_without_times_says_why(rows):
    assert all(row[-1] for found in rows.values() for row in found.values() if not row[1])


@pytest.mark.long
def test_what_was_saved_is_loaded_again_bit_by_bit_and_ours_breaks_nowhere(outcome, rows):
    equal = {name for found in rows.values() for name, row in found.items() if row[-1] == "loaded again, equal"}
    assert equal >= {*BASELINES, "ours"}
    assert [row for table in outcome.tables for row in table.rows if row[-1] == BROKE] == []


@pytest.mark.long
def test_the_line_for_machines_has_every_target(outcome):
    line = json.loads(as_json("checkpoint", outcome))
    assert len(line["targets"]) == 11
    assert [target["name"] for target in line["targets"] if target["met"] and target["value"] is None] == []


@pytest.mark.long
def test_nothing_is_left_in_memory_or_on_the_disk(outcome, places):
    assert [path for place in places for path in place.iterdir()] == []


def test_of_a_run_that_saw_nothing_no_target_is_met():
    found = CheckpointResults({scene: SceneResult() for scene in SCENES})
    assert [target.name for target in found.targets() if target.is_met] == []
    assert {row[-1] for table in found.tables() for row in table.rows} == {BROKE}


def test_a_ratio_is_of_the_best_of_one_scene():
    found = CheckpointResults(
        {"first": SceneResult(times_s={"ours": [3.0, 2.0], "floor 1": [1.0, 4.0]}), "steady": SceneResult()}
    )
    assert found.ratio("first", "ours", "floor 1") == 2
    assert math.isnan(found.ratio("first", "ours", "floor 2"))
    assert math.isnan(found.ratio("steady", "ours", "floor 1"))


def test_what_broke_is_told():
    found = CheckpointResults({scene: SceneResult(faults={"ours": "OSError: no room"}) for scene in SCENES})
    assert "first, ours: OSError: no room" in found.failures()


@pytest.mark.parametrize(
    ("size", "count", "size_bytes"),
    [
        pytest.param(LARGE, 1_056, 1.87e9, id="1,056 tensors and 1.87 GB, as docs/facts/launcher.md 0 has them"),
        pytest.param(SMALL, 1_056, 256 << 20, id="as many in 256 MiB"),
    ],
)
def test_the_states_are_as_large_as_they_say(size, count, size_bytes):
    shapes = size.shapes().values()
    assert 3 * len(shapes) == count
    assert 3 * 4 * sum(math.prod(shape) for shape in shapes) == pytest.approx(size_bytes, rel=0.01)


pieces = st.lists(st.integers(1, 50_000), max_size=20)


@given(pieces, st.integers(1, 5))
def test_shares_are_as_large_and_lose_no_byte(lengths, shares):
    given_ = [(at * 1_000_000, at * 2_000_000, length) for at, length in enumerate(lengths)]
    found = split(given_, shares)
    assert len(found) == shares
    sizes = [sum(length for _, _, length in share) for share in found]
    assert max(sizes) - min(sizes) <= 2 * 4096
    address_pairs = [(to + at, source + at) for to, source, length in given_ for at in range(0, length, 997)]
    inside = [
        (to + at, source + at)
        for share in found
        for to, source, length in share
        for at in range(length)
        if (to + at) % 1_000_000 % 997 == 0
    ]
    assert inside == address_pairs


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_floor_copies_every_byte_there_and_back(threads):
    every = [tensor for _, tensor in tensors(make(TINY))]
    originals = [tensor.clone() for tensor in every]
    with WarmMemory(sum(tensor.nbytes for tensor in every)) as warm:
        forward, back = (MemoryCopy(every, warm.address, threads, backwards=way) for way in (False, True))
        forward()
        assert warm.holds(every)
        for tensor in every:
            tensor.zero_()
        back()
        for each in (forward, back):
            each.close()
    assert all(map(lambda one, other: one.equal(other), every, originals))


def test_the_part_that_changes_is_a_twentieth_of_the_bytes():
    every = [tensor for _, tensor in tensors(make(TINY))]
    chosen = sum(tensor.nbytes for tensor in last_tensors(every, 0.05))
    largest = max(tensor.nbytes for tensor in every)
    assert 0.05 * bytes_of(make(TINY)) <= chosen <= 0.05 * bytes_of(make(TINY)) + largest


def test_a_state_equals_its_copy():
    assert differ(make(TINY), copy.deepcopy(make(TINY))) == ""


def bit(state):
    state["model"]["1.up.weight"][3, 5] += 1e-3


def sign_of_zero(state):
    state["optimizer"]["exp_avg"]["last.bias"].zero_()[0] = -0.0


def key(state):
    del state["scheduler"]["kind"]


def order(state):
    state["step"] = state.pop("step")
    state["model"] = state.pop("model")


def kind(state):
    state["step"] = 0.0


def shape(state):
    state["model"]["words"] = state["model"]["words"].reshape(-1)


@pytest.mark.parametrize(
    ("change", "at"),
    [
        pytest.param(bit, "/model/1.up.weight", id="one value"),
        pytest.param(sign_of_zero, "/optimizer/exp_avg/last.bias", id="the sign of a zero"),
        pytest.param(key, "/scheduler", id="a key"),
        pytest.param(order, "the keys", id="the order of keys"),
        pytest.param(kind, "/step", id="an int that is a float"),
        pytest.param(shape, "/model/words", id="a shape"),
    ],
)
def test_where_two_states_differ(change, at):
    one, other = make(TINY), make(TINY)
    one["optimizer"]["exp_avg"]["last.bias"].zero_()
    other["optimizer"]["exp_avg"]["last.bias"].zero_()
    change(other)
    assert differ(one, other) == at


def test_an_error_of_the_sender_is_no_time():
    assert seconds_of(0.5) == 0.5
    with pytest.raises(RuntimeError, match="the receiver ended"):
        seconds_of("ConnectionError: the receiver ended")
