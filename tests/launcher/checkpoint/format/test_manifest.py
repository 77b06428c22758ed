"""Notes and manifests: only what was written is read, and only a whole step is ever committed."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.manifest import (
    MAX_COUNT,
    MAX_SHARD_BYTES,
    MAX_WORLD,
    BlockChecksums,
    Manifest,
    ShardNote,
    StoredShard,
    complete_manifest,
    read,
    read_note,
    sum_of_sums,
    write,
    write_note,
)
from turnout.launcher.checkpoint.format.shard_file import BLOCK_BYTES, CHUNK_BYTES, sum_of, sums_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat

steps, rounds = st.integers(0, 1 << 60), st.integers(0, 1 << 60)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
files = words.filter(lambda name: name not in (".", "..") and not {*name} & {"/", "\\", "\0"})
sums = st.integers(0, (1 << 64) - 1)
times = st.floats(0, 1e12)


@st.composite
def shards(draw, rank=None):
    chunks = draw(st.lists(sums, min_size=1, max_size=4))
    size = draw(st.integers(max(8, CHUNK_BYTES * (len(chunks) - 1) + 1), CHUNK_BYTES * len(chunks)))
    rank = draw(st.integers(0, 9)) if rank is None else rank
    return StoredShard.of(
        f"{rank} {draw(files)}", rank, size, draw(st.integers(8, size)), chunks, draw(words | st.just(""))
    )


@st.composite
def notes(draw):
    each = draw(shards())
    size = draw(st.sampled_from([BLOCK_BYTES, 2 * BLOCK_BYTES]))
    count = -(-each.bytes // size)
    blocks = draw(
        st.none() | st.lists(sums, min_size=count, max_size=count).map(lambda found: BlockChecksums.of(size, found))
    )
    return ShardNote(draw(words), draw(steps), draw(rounds), draw(st.integers(10, 99)), each, draw(times), blocks)


@st.composite
def manifests(draw):
    world = draw(st.integers(1, 4))
    parts = tuple(draw(shards(rank)) for rank in range(world))
    return Manifest(draw(words), draw(steps), draw(rounds), world, draw(times), parts)


def shard(rank=0, file="", bytes=5_000_000, head_bytes=4_096, sums=(1, 2)):
    return StoredShard.of(file or f"rank-{rank}.safetensors", rank, bytes, head_bytes, sums)


def note(rank=0, step=10, round=1, world=2, run="job", saved_s=7.0, sums=(1, 2)):
    return ShardNote(run, step, round, world, shard(rank, sums=sums), saved_s)


NOTE = note(1)
MANIFEST = Manifest("job", 10, 1, 2, 7.0, (shard(0), shard(1)))
WRITTEN = [pytest.param(write_note(NOTE), read_note, id="a note"), pytest.param(write(MANIFEST), read, id="a manifest")]


def refuses(reader, data):
    with pytest.raises(BadCheckpoint):
        reader(data)


@given(notes())
def test_a_note_is_read_again(stored_note):
    data = write_note(stored_note)
    assert read_note(data) == read_note(memoryview(data)) == read_note(bytearray(data)) == stored_note


@given(manifests())
def test_a_manifest_is_read_again(manifest):
    data = write(manifest)
    assert read(data) == read(memoryview(data)) == read(bytearray(data)) == manifest


def test_both_are_one_line_of_json_that_a_person_can_read():
    assert json.loads(write(MANIFEST))["manifest"]["shards"][1]["file"] == "rank-1.safetensors"
    assert json.loads(write_note(NOTE))["note"]["step"] == 10
    assert b"\n" not in write(MANIFEST) + write_note(NOTE)


@pytest.mark.parametrize(("data", "reader"), WRITTEN)
def test_every_flipped_byte_is_found(data, reader):
    for at, was in enumerate(data):
        for other in range(256):
            if other != was:
                refuses(reader, data[:at] + bytes([other]) + data[at + 1 :])


@pytest.mark.parametrize(("data", "reader"), WRITTEN)
def test_every_torn_end_is_found(data, reader):
    for end in range(len(data)):
        refuses(reader, data[:end])
    for tail in (b"\n", b" ", b"\0" * 4_096, data):
        refuses(reader, data + tail)
    refuses(reader, b"\0" * len(data))


@pytest.mark.parametrize(("data", "reader"), WRITTEN)
def test_a_byte_lost_or_put_between_is_found(data, reader):
    for at in range(len(data)):
        refuses(reader, data[:at] + data[at + 1 :])
        for more in b" 0":
            refuses(reader, data[:at] + bytes([more]) + data[at:])


def test_one_is_not_taken_for_the_other():
    refuses(read, write_note(NOTE))
    refuses(read_note, write(MANIFEST))


@given(st.binary(max_size=200))
def test_other_bytes_raise_nothing_else(data):
    refuses(read, data)
    refuses(read_note, data)


def resealed(data, old, new):
    """Change the contents and give them the right checksum: no accident makes that, and it is still not believed."""
    what = next(iter({*json.loads(data)} & {"note", "manifest"})).encode()
    plain = data.split(b'"%b":' % what, 1)[1][:-1].replace(old, new, 1)
    return b'{"sum":"%016x","version":1,"%b":%b}' % (sum_of(b"%b 1 %b" % (what, plain)), what, plain)


def test_a_text_with_its_sum_made_by_hand_is_read():
    assert read(resealed(write(MANIFEST), b"", b"")) == MANIFEST
    assert read(resealed(write(MANIFEST), b'"step":10', b'"step":20')).step == 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"step":10', b'"step":-1', id="a step below none"),
        pytest.param(b'"step":10', b'"step":1e1', id="a step as a fraction"),
        pytest.param(b'"step":10', b'"step":"10"', id="a step as text"),
        pytest.param(b'"step":10,', b"", id="no step"),
        pytest.param(b'"step":10', b'"step":1152921504606846977', id="a step too large"),
        pytest.param(b'"round":1', b'"round":-1', id="a round below none"),
        pytest.param(b'"world":2', b'"world":0', id="a world of nobody"),
        pytest.param(b'"world":2', b'"world":1', id="a world with a rank too many"),
        pytest.param(b'"world":2', b'"world":3', id="a world with a rank too few"),
        pytest.param(b'"world":2', b'"world":16777217', id="a world too large"),
        pytest.param(b'"job"', b'""', id="a run without a name"),
        pytest.param(b'"job"', b'"%b"' % (b"j" * 254), id="a run's name too long"),
        pytest.param(b'"saved_s":7.0', b'"saved_s":-7.0', id="a time before all"),
        pytest.param(b'"saved_s":7.0', b'"saved_s":1e999', id="a time that never comes"),
        pytest.param(b'"rank":0', b'"rank":1', id="a rank twice"),
        pytest.param(b'"rank":0', b'"rank":-1', id="a rank below none"),
        pytest.param(b"rank-1.safetensors", b"rank-0.safetensors", id="a file twice"),
        pytest.param(b"rank-1.safetensors", b"../rank-1.safetensors", id="a file elsewhere"),
        pytest.param(b"rank-1.safetensors", b"/etc/passwd", id="a file anywhere"),
        pytest.param(b"rank-1.safetensors", b"..", id="the folder above"),
        pytest.param(b"rank-1.safetensors", b"", id="a file without a name"),
        pytest.param(b"rank-1.safetensors", b"a\\u0000", id="a file that ends early"),
        pytest.param(b'"bytes":5000000', b'"bytes":9000000', id="a chunk without a sum"),
        pytest.param(b'"bytes":5000000', b'"bytes":4194304', id="a sum without a chunk"),
        pytest.param(b'"bytes":5000000', b'"bytes":0', id="a file of nothing"),
        pytest.param(b'"head_bytes":4096', b'"head_bytes":5000001', id="a head larger than all"),
        pytest.param(b'"head_bytes":4096', b'"head_bytes":0', id="no head"),
        pytest.param(b'"sums":[1,2]', b'"sums":[2,1]', id="sums in another order"),
        pytest.param(b'"sums":[1,2]', b'"sums":[1,-2]', id="a sum below 0"),
        pytest.param(b'"sums":[1,2]', b'"sums":[1,18446744073709551616]', id="a sum of nine bytes"),
        pytest.param(b'"sums":[1,2]', b'"sums":' + b"[" * 100_000, id="arrays in arrays in arrays"),
        pytest.param(b"rank-1", b"rank-\xff", id="text that is no UTF-8"),
    ],
)
def test_what_cannot_be_is_refused_with_the_right_sum_too(old, new):
    assert old in write(MANIFEST)
    refuses(read, resealed(write(MANIFEST), old, new))


FILE = StoredShard.of("f", 0, 8, 8, [0])


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: StoredShard.of("f" * 255, 0, 8, 8, [0]), id="a long name"),
        pytest.param(lambda: StoredShard.of("f", MAX_WORLD - 1, 8, 8, [0]), id="the last rank there can be"),
        pytest.param(lambda: StoredShard.of("f", 0, 8, 8, [(1 << 64) - 1]), id="the largest sum"),
        pytest.param(lambda: StoredShard.of("f", 0, CHUNK_BYTES, 8, [1]), id="a whole chunk"),
        pytest.param(lambda: StoredShard.of("f", 0, CHUNK_BYTES + 1, 8, [1, 1]), id="a chunk and a byte"),
        pytest.param(lambda: StoredShard.of("f", 0, MAX_SHARD_BYTES, 8, [1] * (MAX_SHARD_BYTES // CHUNK_BYTES)),
                     id="as many bytes as there can be"),
        pytest.param(lambda: BlockChecksums.of(BLOCK_BYTES, [1]), id="the smallest blocks"),
        pytest.param(lambda: BlockChecksums.of(CHUNK_BYTES // 2, [1]), id="the largest blocks"),
        pytest.param(lambda: ShardNote("r", 0, 0, 1, FILE), id="the first of all notes"),
        pytest.param(lambda: ShardNote("r" * 253, MAX_COUNT, MAX_COUNT, MAX_WORLD, FILE, 0.5), id="the last of all"),
        pytest.param(lambda: ShardNote("r", 0, 0, 8, replace(FILE, rank=7)), id="the last rank of its world"),
        pytest.param(lambda: Manifest("r", 0, 0, 1, 0.0, (FILE,)), id="the first of all manifests"),
    ],
)  # fmt: skip
def test_what_may_lie_in_storage(build):
    assert build()


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: note(rank=2), id="a rank that is not in its world"),
        pytest.param(lambda: note(step=-1), id="a step below none"),
        pytest.param(lambda: note(run=""), id="a run without a name"),
        pytest.param(lambda: note(saved_s=math.nan), id="a time that is no time"),
        pytest.param(lambda: shard(file="a/b"), id="a path for a name"),
        pytest.param(lambda: shard(file="a\\b"), id="a path of another system"),
        pytest.param(lambda: shard(bytes=MAX_SHARD_BYTES + 1), id="a file too large"),
        pytest.param(lambda: StoredShard.of("f" * 256, 0, 8, 8, [0]), id="a longer name"),
        pytest.param(lambda: StoredShard.of("f", MAX_WORLD, 8, 8, [0]), id="a rank too many"),
        pytest.param(lambda: StoredShard.of("f", 0, 8, 7, [0]), id="half a head"),
        pytest.param(lambda: note(round=MAX_COUNT + 1), id="a round too many"),
        pytest.param(lambda: shard(sums=()), id="no sums"),
        pytest.param(lambda: replace(shard(), sums_sum=5), id="a sum of sums that is not theirs"),
        pytest.param(lambda: replace(MANIFEST, shards=MANIFEST.shards[::-1]), id="shards out of order"),
        pytest.param(lambda: replace(MANIFEST, shards=MANIFEST.shards[:1]), id="a shard missing"),
    ],
)
def test_what_would_not_be_read_again_cannot_be_made(build):
    with pytest.raises(BadCheckpoint):
        build()


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: BlockChecksums.of(BLOCK_BYTES // 2, [1]), id="blocks too small"),
        pytest.param(lambda: BlockChecksums.of(CHUNK_BYTES, [1]), id="blocks that are chunks"),
        pytest.param(lambda: BlockChecksums.of(3 * BLOCK_BYTES, [1]), id="blocks of which chunks are not made"),
        pytest.param(lambda: BlockChecksums(BLOCK_BYTES, b"1234567"), id="a part of a sum"),
        pytest.param(lambda: replace(note(), blocks=BlockChecksums.of(BLOCK_BYTES, range(19))), id="a block too few"),
        pytest.param(lambda: replace(note(), blocks=BlockChecksums.of(BLOCK_BYTES, range(21))), id="a block too many"),
    ],
)
def test_sums_of_blocks_are_those_of_all_blocks_of_the_shard(build):
    assert replace(note(), blocks=BlockChecksums.of(BLOCK_BYTES, range(20))).blocks.sums == tuple(range(20))
    with pytest.raises(BadCheckpoint):
        build()


def test_a_note_of_a_newer_format_is_told_apart_from_one_that_is_torn():
    plain = write_note(ShardNote("r", 0, 0, 1, FILE)).split(b'"note":', 1)[1][:-1]
    newer = b'{"sum":"%016x","version":2,"note":%b}' % (sum_of(b"note 2 %b" % plain), plain)
    with pytest.raises(NewerFormat):
        read_note(newer)
    with pytest.raises(BadCheckpoint, match="torn, foreign or flipped"):
        read_note(newer.replace(b'"step":0', b'"step":1'))


def test_a_note_of_before_there_were_blocks_is_read():
    text = (
        b'{"sum":"b222bd032fed4a69","version":1,"note":{"run":"job","step":10,"round":1,"world":2,"shard":{"file":'
        b'"rank-00001.safetensors","rank":1,"bytes":300000,"head_bytes":4096,"sums_sum":10233279695637096332,"sums":[5],'
        b'"about":""},"saved_s":3.5}}'
    )
    shard = StoredShard.of("rank-00001.safetensors", 1, 300_000, 4_096, [5])
    assert read_note(text) == ShardNote("job", 10, 1, 2, shard, 3.5, None)


def test_sums_are_of_the_files_own_bytes_head_included():
    data = bytes(range(256)) * 20_000
    sums = sums_of(memoryview(data))
    shard = StoredShard.of("f", 0, len(data), 4_096, sums)
    assert shard.sums == (sum_of(data[:CHUNK_BYTES]), sum_of(data[CHUNK_BYTES:]))
    assert shard.sums_sum == sum_of_sums(sums) == sum_of(b"".join(each.to_bytes(8, "little") for each in sums))


@pytest.mark.parametrize(
    ("notes", "is_complete"),
    [
        pytest.param([], False, id="nobody has noted anything"),
        pytest.param([note(0)], False, id="one of two"),
        pytest.param([note(0), note(0)], False, id="one of two, twice"),
        pytest.param([note(0), note(1, step=20)], False, id="the other is at another step"),
        pytest.param([note(0), note(1, round=2)], False, id="the other's is from after a restart"),
        pytest.param([note(0, world=1)], False, id="of a smaller world, in which it was all"),
        pytest.param([note(0), note(1, world=4)], False, id="the other's is of a larger world"),
        pytest.param([note(0), note(1, run="else")], False, id="the other's is of another job"),
        pytest.param([note(0), note(1)], True, id="both"),
        pytest.param([note(1), note(0, step=20), note(0)], True, id="both among others, in any order"),
    ],
)
def test_a_step_is_complete_when_every_rank_of_its_world_has_noted_it(notes, is_complete):
    assert (complete_manifest(notes, 10, 1, 2) is not None) == is_complete


def test_a_manifest_has_the_shards_by_rank_and_the_time_of_the_last():
    manifest = complete_manifest([note(1, saved_s=9.0), note(0)], step=10, round=1, world=2)
    assert manifest == Manifest("job", 10, 1, 2, 9.0, (shard(0), shard(1)))
    assert manifest.bytes == 10_000_000


def test_a_rank_that_saved_again_counts_with_what_it_saved_last():
    old, new = note(0, saved_s=1.0, sums=(5, 6)), note(0, saved_s=2.0, sums=(7, 8))
    for notes in ([old, new, note(1)], [new, note(1), old]):
        assert complete_manifest(notes, 10, 1, 2).shards[0].sums == (7, 8)


@given(st.lists(st.builds(
    note, st.integers(0, 1), st.just(10) | st.just(20), st.integers(1, 2), st.integers(2, 3), st.sampled_from("ab"),
    st.integers(1, 3).map(float), st.just((1, 2)) | st.just((3, 4)),
)), st.randoms(use_true_random=False))  # fmt: skip
def test_a_manifest_is_of_one_run_round_and_world_whatever_the_order_told(notes, dice):
    manifest = complete_manifest(notes, 10, 1, 2)
    assert complete_manifest(dice.sample(notes, len(notes)), 10, 1, 2) == manifest
    fits = [each for each in notes if (each.step, each.round, each.world) == (10, 1, 2)]
    wholes = [run for run in "ab" if {each.shard.rank for each in fits if each.run == run} == {0, 1}]
    if manifest is None:
        assert wholes == []
    else:
        assert manifest.run in wholes
        assert all(any(each.run == manifest.run and each.shard == part for each in fits) for part in manifest.shards)
        assert read(write(manifest)) == manifest
