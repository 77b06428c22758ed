"""The smallest and largest accepted and refused values: identities, records, shards, heads, trees and memory needs."""

import json
from dataclasses import replace

import pytest

from turnout.launcher.checkpoint.format import daemon_messages as messages
from turnout.launcher.checkpoint.format.arena_layout import (
    MOST,
    MOST_GENERATIONS,
    PAGE_BYTES,
    RECORD_AT,
    STRIDE_BYTES,
    TARGET_BYTES,
    Identity,
    ShardRecord,
    Slot,
    SlotState,
    newest,
    next_epoch,
    offset_of,
    read_table,
    read_target,
    slot_to_write,
    table_at,
    target_bytes,
)
from turnout.launcher.checkpoint.format.manifest import (
    MOST_COUNT,
    MOST_SHARD_BYTES,
    MOST_WORLD,
    All,
    Blocks,
    Every,
    Latest,
    Manifest,
    ShardNote,
    StoredShard,
    read_note,
    rule,
    write_note,
)
from turnout.launcher.checkpoint.format.memory_budget import Limits, need_bytes, refusal
from turnout.launcher.checkpoint.format.shard_file import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    MOST_BLOCKS,
    MOST_DATA_BYTES,
    MOST_HEAD_BYTES,
    block_bytes_of,
    join_head,
    read_head,
    sum_of,
)
from turnout.launcher.checkpoint.format.state_tree import MOST_DEPTH, MOST_TEXT_BYTES, flatten, unflatten
from turnout.launcher.errors import BadCheckpoint, BadMember, BadState, NewerFormat
from turnout.launcher.rendezvous.restore.replica_placement import replica_holders

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
OURS = Identity("run", "w", 0, "boot", 1)
RECORD = ShardRecord(1, 1, 1, 0, 1, PAGE_BYTES, 0)
# So much is left for head and data beside their sums, of which a page is enough for 2 GiB.
ROOM = STRIDE_BYTES - 512 * PAGE_BYTES


def each(value, bounds):
    """One bound at a time."""
    return [pytest.param({name: at}, id=f"{name} {at}") for name, ats in bounds.items() for at in ats]


@pytest.mark.parametrize("bound", each(OURS, {
    "run": ["r" * 253], "worker": ["w" * 253], "owner": ["o" * 253], "boot": ["b" * 64],
    "local_rank": [0, (1 << 20) - 1], "count": [1, MOST_GENERATIONS], "owner_count": [1, MOST_GENERATIONS],
}))  # fmt: skip
def test_the_last_identity_that_is_taken(bound):
    assert replace(OURS, **bound)


@pytest.mark.parametrize("bound", each(OURS, {
    "run": ["r" * 254], "worker": ["w" * 254], "owner": ["o" * 254], "boot": ["b" * 65],
    "local_rank": [-1, 1 << 20], "count": [0, MOST_GENERATIONS + 1], "owner_count": [0, MOST_GENERATIONS + 1],
}))  # fmt: skip
def test_the_first_identity_that_is_refused(bound):
    with pytest.raises(BadCheckpoint):
        replace(OURS, **bound)


def test_an_arena_is_the_workers_own_unless_another_owner_is_named():
    assert Identity("run", "w", 0, "boot", 1, owner="", owner_count=1) == OURS


@pytest.mark.parametrize("bound", each(RECORD, {
    "epoch": [0, MOST], "step": [0, MOST], "round": [0, MOST], "world": [1, MOST],
    "head_bytes": [PAGE_BYTES, 2 * PAGE_BYTES], "data_bytes": [0, 1, ROOM - PAGE_BYTES],
}))  # fmt: skip
def test_the_last_record_that_is_taken(bound):
    assert replace(RECORD, **bound).region_bytes <= STRIDE_BYTES


@pytest.mark.parametrize("bound", each(RECORD, {
    "epoch": [-1, MOST + 1], "step": [-1, MOST + 1], "round": [-1, MOST + 1], "world": [0, MOST + 1], "rank": [-1, 1],
    "head_bytes": [0, PAGE_BYTES + 1, PAGE_BYTES // 2], "data_bytes": [-1, ROOM - PAGE_BYTES + 1],
}))  # fmt: skip
def test_the_first_record_that_is_refused(bound):
    with pytest.raises(BadCheckpoint):
        replace(RECORD, **bound)


def test_the_last_rank_of_a_world_has_a_record():
    assert replace(RECORD, rank=7, world=8).rank == 7


def test_generations_lie_a_stride_apart_and_their_tables_a_page_behind_it():
    assert [offset_of(at) for at in (0, 1, 6)] == [STRIDE_BYTES, 2 * STRIDE_BYTES, 7 * STRIDE_BYTES]
    assert [table_at(at) for at in (0, 1, 6)] == [PAGE_BYTES, 2 * PAGE_BYTES, 7 * PAGE_BYTES]


def table(*words):
    return b"".join(word.to_bytes(8, "little") for word in words).ljust(PAGE_BYTES, b"\0")


@pytest.mark.parametrize(
    ("words", "slot"),
    [
        pytest.param((0, 0, 0, 0, 0), Slot(SlotState.EMPTY, False, 0, None, None, 0, ""), id="of a new file"),
        pytest.param((SlotState.WRITING, 1, MOST, 9, STRIDE_BYTES),
                     Slot(SlotState.WRITING, True, MOST, None, None, STRIDE_BYTES, ""), id="the largest numbers"),
        pytest.param((SlotState.WRITING, 2, MOST + 1, 9, STRIDE_BYTES + 1), Slot(SlotState.WRITING, True),
                     id="larger ones are not believed"),
    ],
)  # fmt: skip
def test_what_a_table_tells(words, slot):
    assert read_table(table(*words)) == slot
    assert len(table()) > RECORD_AT


@pytest.mark.parametrize("length", [0, 1, 3_957, 3_958, 3_959, 3_965, 9_999])
def test_a_folder_has_its_place_however_long_it_is(length):
    """Eight bytes are its sum, and two its length."""
    raw = target_bytes("x" * length)
    assert len(raw) == TARGET_BYTES
    assert read_target(raw) == ("x" * length if length <= TARGET_BYTES - 10 else "")


def test_the_first_save_of_an_arena_is_its_first_epoch():
    assert (next_epoch([]), next_epoch([Slot()]), next_epoch([Slot(epoch=4), Slot(epoch=2)])) == (1, 1, 5)


def test_what_is_sealed_may_be_read_before_it_is_hashed():
    slots = [
        Slot(SlotState.HASHED, epoch=1, record=RECORD),
        Slot(SlotState.SEALED, epoch=2, record=RECORD),
        Slot(epoch=3),
    ]
    assert (newest(slots), newest(slots, hashed_only=True), newest(slots[2:])) == (1, 0, None)


def test_what_holds_nothing_is_overwritten_before_the_very_first_save():
    first, last = (Slot(SlotState.SEALED, epoch=epoch, record=replace(RECORD, epoch=epoch)) for epoch in (0, 5))
    assert slot_to_write([first, Slot(), last]) == 1


# Shards, notes and manifests.

FILE = StoredShard.of("f", 0, 8, 8, [0])


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: StoredShard.of("f" * 255, 0, 8, 8, [0]), id="a long name"),
        pytest.param(lambda: StoredShard.of("f", MOST_WORLD - 1, 8, 8, [0]), id="the last rank there can be"),
        pytest.param(lambda: StoredShard.of("f", 0, 8, 8, [(1 << 64) - 1]), id="the largest sum"),
        pytest.param(lambda: StoredShard.of("f", 0, CHUNK_BYTES, 8, [1]), id="a whole chunk"),
        pytest.param(lambda: StoredShard.of("f", 0, CHUNK_BYTES + 1, 8, [1, 1]), id="a chunk and a byte"),
        pytest.param(lambda: StoredShard.of("f", 0, MOST_SHARD_BYTES, 8, [1] * (MOST_SHARD_BYTES // CHUNK_BYTES)),
                     id="as many bytes as there can be"),
        pytest.param(lambda: Blocks.of(BLOCK_BYTES, [1]), id="the smallest blocks"),
        pytest.param(lambda: Blocks.of(CHUNK_BYTES // 2, [1]), id="the largest blocks"),
        pytest.param(lambda: ShardNote("r", 0, 0, 1, FILE), id="the first of all notes"),
        pytest.param(lambda: ShardNote("r" * 253, MOST_COUNT, MOST_COUNT, MOST_WORLD, FILE, 0.5), id="the last of all"),
        pytest.param(lambda: ShardNote("r", 0, 0, 8, replace(FILE, rank=7)), id="the last rank of its world"),
        pytest.param(lambda: Manifest("r", 0, 0, 1, 0.0, (FILE,)), id="the first of all manifests"),
    ],
)  # fmt: skip
def test_what_may_lie_in_storage(made):
    assert made()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        pytest.param(lambda: StoredShard.of("f" * 256, 0, 8, 8, [0]), "^'f{255}' is no name of a file$", id="longer"),
        pytest.param(lambda: StoredShard.of("f", MOST_WORLD, 8, 8, [0]), "outside 0 to 16777215", id="a rank too many"),
        pytest.param(lambda: StoredShard.of("f", 0, 8, 7, [0]), "8 bytes with a head of 7 cannot be", id="half"),
        pytest.param(lambda: StoredShard.of("f", 0, 8, 9, [0]), "8 bytes with a head of 9 cannot be", id="all is head"),
        pytest.param(
            lambda: ShardNote("r", 0, 0, 1, replace(FILE, rank=1)), "rank 1 is not in a world of 1", id="no rank"
        ),
        pytest.param(lambda: ShardNote("r" * 254, 0, 0, 1, FILE), "1 to 253 characters", id="a run's name too long"),
        pytest.param(lambda: ShardNote("r", MOST_COUNT + 1, 0, 1, FILE), "out of bounds", id="a step too many"),
        pytest.param(lambda: ShardNote("r", 0, MOST_COUNT + 1, 1, FILE), "out of bounds", id="a round too many"),
        pytest.param(lambda: ShardNote("r", 0, -1, 1, FILE), "out of bounds", id="a round below none"),
        pytest.param(lambda: ShardNote("r", 0, 0, MOST_WORLD + 1, FILE), "out of bounds", id="too large a world"),
        pytest.param(lambda: Manifest("r", 0, 0, 0, 0.0, ()), "out of bounds", id="a world of nobody"),
        pytest.param(lambda: ShardNote("r", 0, 0, 1, FILE, -0.5), "no time", id="a time before all"),
        pytest.param(lambda: ShardNote("r", 0, 0, 1, FILE, float("inf")), "no time", id="a time after all"),
        pytest.param(lambda: Manifest("r", 3, 0, 2, 0.0, (FILE,)), "step 3: .* not those of the ranks 0 to 1",
                     id="a shard too few"),
    ],
)  # fmt: skip
def test_what_may_not_lie_in_storage(made, why):
    with pytest.raises(BadCheckpoint, match=why):
        made()


def test_a_note_without_a_time_is_of_the_beginning():
    assert ShardNote("r", 0, 0, 1, FILE) == ShardNote("r", 0, 0, 1, FILE, saved_s=0.0, blocks=None)


def test_a_note_of_a_newer_format_is_told_apart_from_one_that_is_torn():
    plain = write_note(ShardNote("r", 0, 0, 1, FILE)).split(b'"note":', 1)[1][:-1]
    newer = b'{"sum":"%016x","version":2,"note":%b}' % (sum_of(b"note 2 %b" % plain), plain)
    with pytest.raises(NewerFormat):
        read_note(newer)
    with pytest.raises(BadCheckpoint, match="torn, foreign or flipped"):
        read_note(newer.replace(b'"step":0', b'"step":1'))


@pytest.mark.parametrize(
    ("size_bytes", "block_bytes"),
    [
        pytest.param(0, BLOCK_BYTES, id="nothing"),
        pytest.param(MOST_BLOCKS * BLOCK_BYTES, BLOCK_BYTES, id="as much as the smallest blocks are enough for"),
        pytest.param(MOST_BLOCKS * BLOCK_BYTES + 1, 2 * BLOCK_BYTES, id="a byte more"),
        pytest.param(MOST_BLOCKS * CHUNK_BYTES + 1, CHUNK_BYTES, id="never more than a chunk"),
    ],
)
def test_blocks_are_twice_as_large_where_they_would_be_too_many(size_bytes, block_bytes):
    assert block_bytes_of(size_bytes) == block_bytes


# Heads and trees.


def test_a_head_may_be_as_long_as_safetensors_reads():
    about = MOST_HEAD_BYTES - 8 - len('{"__metadata__":}')
    assert len(join_head(b"x" * about, b"{}")) == MOST_HEAD_BYTES
    with pytest.raises(BadState, match="use tensors"):
        join_head(b"x" * (about + 1), b"{}")


def test_tensors_may_be_as_large_as_a_generation():
    text = json.dumps({"a": {"dtype": "U8", "shape": [MOST_DATA_BYTES], "data_offsets": [0, MOST_DATA_BYTES]}}).encode()
    head = (PAGE_BYTES - 8).to_bytes(8, "little") + text.ljust(PAGE_BYTES - 8)
    assert read_head(head)[0].data_bytes == MOST_DATA_BYTES


def test_of_a_long_name_that_is_wrong_the_beginning_is_told():
    text = json.dumps({"n" * 99: {}}).encode()
    with pytest.raises(BadCheckpoint, match=r"^tensor 'n{64}' is not described as one that was packed at 0$"):
        read_head((PAGE_BYTES - 8).to_bytes(8, "little") + text.ljust(PAGE_BYTES - 8))
    for skeleton in (["w" * 99, 1], ["w" * 99, "x"]):
        with pytest.raises(BadCheckpoint, match=r"^the skeleton holds 'w{64}', which is not there or not whole$"):
            unflatten(json.dumps(skeleton), {})


def tuples(depth, inner=1):
    for _ in range(depth):
        inner = (inner,)
    return inner


def written(state):
    return flatten(state, lambda value: False)[0]


@pytest.mark.parametrize(
    ("state", "deepest"),
    [
        pytest.param(lambda depth: tuples(depth), MOST_DEPTH, id="tuples"),
        pytest.param(lambda depth: {tuples(depth): 1}, MOST_DEPTH - 1, id="tuples in a key"),
        pytest.param(lambda depth: [{tuples(depth): 1}], MOST_DEPTH - 2, id="tuples in a key farther in"),
    ],
)
def test_no_more_is_written_than_is_read_again(state, deepest):
    assert unflatten(written(state(deepest)), {}) == state(deepest)
    with pytest.raises(BadState):
        written(state(deepest + 1))


@pytest.mark.parametrize(
    ("begins", "ends", "deepest"),
    [
        pytest.param('["list",', "]", MOST_DEPTH + 1, id="lists"),
        pytest.param('["tuple",', "]", MOST_DEPTH + 1, id="tuples"),
        pytest.param('["dict","k",', "]", MOST_DEPTH + 1, id="dicts"),
        pytest.param('["ordered","k",', "]", MOST_DEPTH + 1, id="ordered ones"),
        pytest.param('["made","one",', "]", MOST_DEPTH + 1, id="what the caller makes"),
    ],
)
def test_what_is_nested_is_read_as_deep_as_it_may_be(begins, ends, deepest):
    made = {"one": lambda parts: parts}
    unflatten(begins * deepest + "1" + ends * deepest, {}, made)
    with pytest.raises(BadCheckpoint):
        unflatten(begins * (deepest + 1) + "1" + ends * (deepest + 1), {}, made)


def test_a_key_is_read_as_deep_as_it_may_be():
    def text(depth):
        return '["list",["dict",' + '["tuple",' * depth + "1" + "]" * depth + ",2]]"

    assert unflatten(text(MOST_DEPTH - 1), {}) == [{tuples(MOST_DEPTH - 1): 2}]
    with pytest.raises(BadCheckpoint):
        unflatten(text(MOST_DEPTH), {})


@pytest.mark.parametrize(
    ("state", "text"),
    [
        pytest.param(5, "5", id="a number"),
        pytest.param(-(1 << 63), "-9223372036854775808", id="the smallest that stands for itself"),
        pytest.param((1 << 63) - 1, "9223372036854775807", id="the largest"),
        pytest.param(1 << 63, '["int","8000000000000000"]', id="one more"),
        pytest.param(-(1 << 63) - 1, '["int","-8000000000000001"]', id="one less than the smallest"),
        pytest.param(0.5, "0.5", id="a fraction"),
        pytest.param(float("inf"), '["float","7ff0000000000000"]', id="one that JSON has not"),
        pytest.param({"a": [None, True]}, '["dict","a",["list",null,true]]', id="branches"),
    ],
)
def test_each_value_is_written_in_one_way(state, text):
    assert written(state) == text


def test_plain_values_may_have_as_much_text_as_is_read():
    state = "x" * (MOST_TEXT_BYTES - 2)
    assert unflatten(written(state), {}) == state


# What is needed, kept and thrown away.


@pytest.mark.parametrize(
    ("free_bytes", "told"),
    [
        pytest.param(GIB, "1.00 GiB (1073741824 bytes)", id="a GiB"),
        pytest.param(GIB - 1, "1024.00 MiB (1073741823 bytes)", id="a byte less"),
        pytest.param(MIB, "1.00 MiB (1048576 bytes)", id="a MiB"),
        pytest.param(MIB // 2, "512.00 KiB (524288 bytes)", id="half of it"),
        pytest.param(KIB, "1.00 KiB (1024 bytes)", id="a KiB"),
        pytest.param(KIB - 1, "has 1023 bytes free", id="a byte less than that"),
    ],
)
def test_sizes_are_told_as_people_read_them(free_bytes, told):
    assert told in refusal(9 * GIB, Limits(free_bytes)).fault


def test_a_gibibyte_is_the_least_to_ask_for():
    assert "sizeLimit: 1Gi" in refusal(1, Limits(0)).advice
    assert "sizeLimit: 1Gi" in refusal(GIB, Limits(0)).advice
    assert "sizeLimit: 2Gi" in refusal(GIB + 1, Limits(0)).advice


def test_unless_it_is_said_nothing_is_pinned_and_nobody_keeps_copies():
    assert refusal(GIB, Limits(GIB, locked_bytes=0)) is None
    assert need_bytes(GIB, 2, 1) == need_bytes(GIB, 2, 1, replicas=0)


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        pytest.param({}, All(), id="nothing is asked for: all stay"),
        pytest.param({"keep": 1}, Latest(1), id="the newest"),
        pytest.param({"every": 1}, Every(1), id="each one"),
    ],
)
def test_the_rule_that_numbers_mean(numbers, kept):
    assert rule(**numbers) == kept


@pytest.mark.parametrize("made", [lambda: Latest(0), lambda: Every(0)], ids=["none of the newest", "every zeroth"])
def test_a_rule_that_keeps_nothing_is_none(made):
    with pytest.raises(ValueError, match="at least 1"):
        made()


def test_of_several_members_the_one_that_is_told_twice_is_named():
    with pytest.raises(BadMember, match=r"^worker 'b': this id is told twice"):
        replica_holders([("a", ()), ("b", ()), ("c", ()), ("b", ())], 1)


# Frames.


@pytest.mark.parametrize(
    ("unsaid", "said"),
    [
        pytest.param(messages.Hello("r", "w", 0, 0, 1, 1), messages.Hello("r", "w", 0, 0, 1, 1, 1, "", 0, False, ""),
                     id="who saves has no copies and writes nowhere"),
        pytest.param(messages.Save(0, 1, 2), messages.Save(0, 1, 2, "", "shards", "", 0, 0, False),
                     id="a save stays in memory"),
        pytest.param(messages.Stats(), messages.Stats(-1, -1, -1, -1, 0, 0, 0, 0, -1, 0, 0), id="nothing is done yet"),
        pytest.param(messages.Restore(3), messages.Restore(3, None, -1), id="nothing is to be carried to storage"),
        pytest.param(messages.Trust(b"t"), messages.Trust(b"t", -1, None), id="no step is gone on from"),
        pytest.param(messages.StoredStep(), messages.StoredStep("", -1), id="nothing is in storage"),
        pytest.param(messages.HeldSteps(), messages.HeldSteps(()), id="nothing is in memory"),
    ],
)  # fmt: skip
def test_what_a_frame_means_that_leaves_fields_out(unsaid, said):
    assert unsaid == said
