"""The pages of an arena, and which generation the next save overwrites."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.arena_layout import (
    MAX_GENERATIONS,
    MAX_NUMBER,
    PAGE_BYTES,
    RECORD_AT,
    RECORD_BYTES,
    STRIDE_BYTES,
    TARGET_AT,
    TARGET_BYTES,
    Identity,
    ShardRecord,
    Slot,
    SlotState,
    identity_page,
    newest_generation,
    next_epoch,
    offset_of,
    read_identity,
    read_record,
    read_table,
    read_target,
    record_bytes,
    slot_to_write,
    table_at,
    target_bytes,
)
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES
from turnout.launcher.errors import BadCheckpoint

OURS = Identity("run-1", "worker-3", 2, "8a3c", 3)
RECORD = ShardRecord(epoch=7, step=4_200, round=3, rank=5, world=8, head_bytes=8_192, data_bytes=10_000_001)


def words(*values):
    return b"".join(value.to_bytes(8, "little") for value in values)


def table(state, pins=0, epoch=7, sums_sum=99, reserved=0, record=RECORD):
    page = words(state, pins, epoch, sums_sum, reserved).ljust(RECORD_AT, b"\0")
    return (page + (record_bytes(record) if record else b"")).ljust(PAGE_BYTES, b"\0")


def flipped(data, at, bits=0xFF):
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def sealed(epoch, **more):
    return Slot(SlotState.SEALED, epoch=epoch, record=replace(RECORD, epoch=epoch), **more)


SMALL = ShardRecord(1, 1, 1, 0, 1, PAGE_BYTES, 0)
# So much is left for head and data beside their sums, of which a page is enough for 2 GiB.
ROOM = STRIDE_BYTES - 512 * PAGE_BYTES
EMPTY, WRITING = Slot(), Slot(SlotState.WRITING, epoch=9)
BROKEN = Slot(epoch=9, fault="torn")

names = st.text(max_size=253)
counts = st.integers(0, MAX_NUMBER)
identities = st.builds(
    Identity, names, names, st.integers(0, (1 << 20) - 1), st.text(max_size=64), st.integers(1, MAX_GENERATIONS)
)
records = st.builds(
    lambda rank, more, **fields: ShardRecord(rank=rank, world=rank + more, **fields),
    rank=st.integers(0, 1 << 30), more=st.integers(1, 1 << 20), epoch=counts, step=counts, round=counts,
    head_bytes=st.integers(1, 1_000).map(lambda pages: pages * PAGE_BYTES), data_bytes=st.integers(0, 1 << 39),
)  # fmt: skip
slots = st.lists(
    st.builds(
        lambda kind, pinned, epoch: replace(kind, pinned=pinned, epoch=epoch),
        st.sampled_from([EMPTY, WRITING, BROKEN, sealed(1), replace(sealed(1), state=SlotState.HASHED)]),
        st.booleans(),
        st.integers(0, 50),
    ),
    max_size=MAX_GENERATIONS,
)


@given(identities)
def test_an_identity_is_read_as_it_was_written(identity):
    assert read_identity(identity_page(identity)) == identity


@given(records)
def test_a_record_is_read_as_it_was_written(record):
    assert read_record(record_bytes(record)) == record


@given(st.text(max_size=989))  # of four bytes each at the most: all that there is room for
def test_a_folder_is_read_as_it_was_written(target):
    assert read_target(target_bytes(target)) == target


@given(st.text(max_size=300), st.integers(0, 8 * TARGET_BYTES - 1))
def test_a_flipped_bit_of_a_folder_makes_it_unknown(target, bit):
    assert read_target(flipped(target_bytes(target), bit // 8, 1 << bit % 8)) == ""


@given(st.binary(max_size=2 * TARGET_BYTES))
def test_no_folder_is_made_of_what_was_not_written_as_one(data):
    assert read_target(data) == read_target(data.ljust(TARGET_BYTES, b"\0")) == ""


@pytest.mark.parametrize(("target", "read"), [
    pytest.param("/" + "x" * 3_957, True, id="as long as there is room"),
    pytest.param("/" + "x" * 3_958, False, id="too long"),
    pytest.param("/" + "\u00e4" * 1_979, False, id="too long in UTF-8"),
    pytest.param("/\udcff", False, id="a name that is no text"),
])  # fmt: skip
def test_a_folder_that_cannot_be_written_is_unknown(target, read):
    assert len(target_bytes(target)) == TARGET_BYTES
    assert read_target(target_bytes(target)) == (target if read else "")


def test_the_folder_lies_behind_the_first_record_and_before_the_next_table():
    assert table_at(0) + RECORD_AT + RECORD_BYTES == TARGET_AT
    assert table_at(1) == TARGET_AT + TARGET_BYTES


@pytest.mark.parametrize("bits", [pytest.param(0xFF, id="all bits"), pytest.param(0x01, id="one bit")])
def test_one_flipped_byte_of_an_identity_is_found_wherever_it_is(bits):
    page = identity_page(OURS)
    for at in range(PAGE_BYTES):
        with pytest.raises(BadCheckpoint):
            read_identity(flipped(page, at, bits))


@pytest.mark.parametrize("state", [SlotState.SEALED, SlotState.HASHED])
@pytest.mark.parametrize("bits", [1 << bit for bit in range(8)] + [0xFF])
def test_one_flipped_byte_of_a_table_never_shows_what_was_not_written(state, bits):
    page, states = table(state, reserved=8_192), (state, 7, RECORD, 99 if state is SlotState.HASHED else None)
    for at in range(RECORD_AT + RECORD_BYTES):
        slot = read_table(flipped(page, at, bits))
        if 24 <= at < 32 and state is SlotState.HASHED:
            assert slot.sums_sum != 99  # and then no sums of this file fit
        elif slot.fault:
            assert (slot.state, slot.record, slot.sums_sum) == (SlotState.EMPTY, None, None)
        else:
            assert (slot.state, slot.epoch, slot.record, slot.sums_sum) == states
        assert bool(slot.fault) == (at < 8 or 16 <= at < 24 or at >= RECORD_AT)


@given(st.binary(max_size=RECORD_AT + RECORD_BYTES))
def test_no_bytes_from_outside_do_harm(data):
    page = data.ljust(PAGE_BYTES, b"\0")
    for read, bad in ((read_identity, data), (read_identity, page), (read_record, data)):
        with pytest.raises(BadCheckpoint):
            read(bad)
    assert read_table(page).record is None


@pytest.mark.parametrize(
    ("page", "slot"),
    [
        pytest.param(bytes(PAGE_BYTES), EMPTY, id="a page of zeros is an empty generation"),
        pytest.param(table(SlotState.SEALED), sealed(7), id="sealed: without sums, whatever stands in their place"),
        pytest.param(
            table(SlotState.HASHED),
            replace(sealed(7), state=SlotState.HASHED, sums_sum=99),
            id="hashed: with their sum",
        ),
        pytest.param(
            table(SlotState.WRITING), Slot(SlotState.WRITING, epoch=7), id="one that is being written has no record"
        ),
        pytest.param(table(SlotState.SEALED, pins=2), sealed(7, pinned=True), id="a reader has pinned it"),
        pytest.param(
            table(SlotState.EMPTY, reserved=4_096), Slot(epoch=7, reserved_bytes=4_096), id="empty, with memory"
        ),
        pytest.param(
            table(SlotState.EMPTY, epoch=0, reserved=STRIDE_BYTES + 1),
            EMPTY,
            id="more memory than there can be is none",
        ),
        pytest.param(
            table(SlotState.EMPTY, epoch=MAX_NUMBER + 1), EMPTY, id="an epoch that no save ever reaches is none"
        ),
        pytest.param(
            table(SlotState.WRITING, 1, MAX_NUMBER, reserved=STRIDE_BYTES),
            Slot(SlotState.WRITING, True, MAX_NUMBER, None, None, STRIDE_BYTES),
            id="the largest numbers",
        ),
    ],
)
def test_a_table_says(page, slot):
    assert read_table(page) == slot


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        pytest.param(table(2), "no state that there is", id="a state that is none"),
        pytest.param(table(SlotState.SEALED, record=None), "does not have the sum", id="no record"),
        pytest.param(table(SlotState.SEALED, epoch=8), "of epoch 7, its table of 8", id="the record of another save"),
    ],
)
def test_a_table_that_cannot_be_believed_counts_as_empty_and_says_why(page, fault):
    slot = read_table(page)
    assert slot.state is SlotState.EMPTY
    assert slot.record is None
    assert fault in slot.fault


def each_of(value, bounds):
    """One bound at a time."""
    return [pytest.param({name: at}, id=f"{name} {at}") for name, ats in bounds.items() for at in ats]


@pytest.mark.parametrize("bound", each_of(OURS, {
    "run": ["r" * 253], "worker": ["w" * 253], "owner": ["o" * 253], "boot": ["b" * 64],
    "local_rank": [0, (1 << 20) - 1], "count": [1, MAX_GENERATIONS], "owner_count": [1, MAX_GENERATIONS],
}))  # fmt: skip
def test_the_last_identity_that_is_taken(bound):
    assert replace(OURS, **bound)


@pytest.mark.parametrize("bound", each_of(OURS, {
    "run": ["r" * 254], "worker": ["w" * 254], "owner": ["o" * 254], "boot": ["b" * 65],
    "local_rank": [-1, 1 << 20], "count": [0, MAX_GENERATIONS + 1], "owner_count": [0, MAX_GENERATIONS + 1],
}))  # fmt: skip
def test_the_first_identity_that_is_refused(bound):
    (value,) = bound.values()
    why = "too long" if isinstance(value, str) else f"rank {value}: 0 to|of {value} generations: 1 to"
    with pytest.raises(BadCheckpoint, match=why):
        replace(OURS, **bound)


@pytest.mark.parametrize("bound", each_of(SMALL, {
    "epoch": [0, MAX_NUMBER], "step": [0, MAX_NUMBER], "round": [0, MAX_NUMBER], "world": [1, MAX_NUMBER],
    "head_bytes": [PAGE_BYTES, 2 * PAGE_BYTES], "data_bytes": [0, 1, ROOM - PAGE_BYTES],
}))  # fmt: skip
def test_the_last_record_that_is_taken(bound):
    assert replace(SMALL, **bound).region_bytes <= STRIDE_BYTES


@pytest.mark.parametrize("bound", each_of(SMALL, {
    "epoch": [-1, MAX_NUMBER + 1], "step": [-1, MAX_NUMBER + 1], "round": [-1, MAX_NUMBER + 1],
    "world": [0, MAX_NUMBER + 1],
    "rank": [-1, 1],
    "head_bytes": [0, PAGE_BYTES + 1, PAGE_BYTES // 2], "data_bytes": [-1, ROOM - PAGE_BYTES + 1],
}))  # fmt: skip
def test_the_first_record_that_is_refused(bound):
    with pytest.raises(BadCheckpoint):
        replace(SMALL, **bound)


@given(records)
def test_head_data_and_sums_lie_apart_and_within_what_is_reserved(record):
    assert record.shard_bytes <= record.sums_at < record.shard_bytes + PAGE_BYTES
    assert record.sums_bytes == 8 * len(range(0, record.shard_bytes, CHUNK_BYTES))
    assert record.sums_at + record.sums_bytes <= record.region_bytes <= STRIDE_BYTES
    assert record.sums_at % PAGE_BYTES == record.region_bytes % PAGE_BYTES == 0


def test_generations_never_meet():
    assert table_at(MAX_GENERATIONS - 1) + PAGE_BYTES <= offset_of(0)
    assert [offset_of(at) for at in (0, 1, 6)] == [STRIDE_BYTES, 2 * STRIDE_BYTES, 7 * STRIDE_BYTES]
    assert [table_at(at) for at in (0, 1, 6)] == [PAGE_BYTES, 2 * PAGE_BYTES, 7 * PAGE_BYTES]


@pytest.mark.parametrize(
    ("slots", "generation"),
    [
        pytest.param([EMPTY, EMPTY, EMPTY], 0, id="nothing is there: the first"),
        pytest.param([sealed(1), EMPTY, EMPTY], 1, id="one that holds nothing"),
        pytest.param([sealed(0), EMPTY, sealed(5)], 1, id="it, also before the very first save"),
        pytest.param([EMPTY, replace(EMPTY, reserved_bytes=4_096)], 1, id="of two such, one that has memory"),
        pytest.param([sealed(3), sealed(1), sealed(2)], 1, id="all are sealed: the oldest"),
        pytest.param([sealed(3), WRITING, sealed(2)], 1, id="one that a crash has left in mid-save"),
        pytest.param([sealed(3), sealed(2), BROKEN], 2, id="one whose table cannot be believed"),
        pytest.param([sealed(3), sealed(1, pinned=True), sealed(2)], 2, id="the oldest is being read: the next"),
        pytest.param([sealed(1)], None, id="the only one that is sealed is never given up"),
        pytest.param([sealed(2), replace(EMPTY, pinned=True)], None, id="nor for a pinned empty one"),
        pytest.param(
            [sealed(2), sealed(1, pinned=True)],
            None,
            id="nor the newest, though another one is sealed, which is being read",
        ),
        pytest.param([sealed(2, pinned=True), sealed(1, pinned=True)], None, id="all are being read"),
        pytest.param([sealed(2, pinned=True), sealed(1)], 1, id="the newest is being read: the other"),
        pytest.param([], None, id="none at all"),
    ],
)
def test_the_generation_that_is_overwritten(slots, generation):
    assert slot_to_write(slots) == generation


def test_a_generation_that_is_still_being_filled_is_not_taken_twice():
    assert slot_to_write([WRITING, sealed(1), sealed(2)], busy={0}) == 1


@given(slots)
def test_a_save_spares_the_read_and_the_newest_while_another_is_free(slots):
    generation = slot_to_write(slots)
    free = [at for at, slot in enumerate(slots) if not slot.pinned and at != newest_generation(slots)]
    assert generation in free if generation is not None else not free


@pytest.mark.parametrize(
    ("slots", "any_sealed", "only_hashed"),
    [
        pytest.param([], None, None, id="none"),
        pytest.param([EMPTY, WRITING, BROKEN], None, None, id="nothing that may be read"),
        pytest.param([sealed(2), replace(sealed(1), state=SlotState.HASHED)], 0, 1, id="by epoch, hashed or not"),
        pytest.param([sealed(2, pinned=True), sealed(3)], 1, None, id="the last that was begun"),
    ],
)
def test_newest(slots, any_sealed, only_hashed):
    assert (newest_generation(slots), newest_generation(slots, hashed_only=True)) == (any_sealed, only_hashed)


@given(slots)
def test_the_next_save_has_an_epoch_of_its_own(slots):
    assert next_epoch(slots) == 1 + max((slot.epoch for slot in slots), default=0)
