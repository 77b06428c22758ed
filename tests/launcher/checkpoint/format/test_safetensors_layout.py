"""Tensors lie packed without holes, safetensors itself reads them, and nothing else is taken for a head."""

import json
import math
import random
import re

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.shard_file import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    DTYPES,
    MAX_BLOCKS,
    MAX_DATA_BYTES,
    MAX_HEAD_BYTES,
    METADATA,
    PAGE_BYTES,
    Entry,
    Layout,
    Spec,
    block_bytes_of,
    bytes_of,
    head_of,
    join_head,
    pack,
    read_head,
    sum_of,
)
from turnout.launcher.errors import BadCheckpoint, BadState

NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8",
}  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def lists_of_specs(dtypes):
    one = st.builds(Spec, texts.filter(lambda name: name != METADATA), st.sampled_from(sorted(dtypes)), shapes)
    return st.lists(one, max_size=12, unique_by=lambda spec: spec.name)


def head_with(text, *, pages=None):
    """A head of this JSON, filled up as ours are, or to so many pages."""
    body = text.encode() if isinstance(text, str) else text
    size = PAGE_BYTES * (pages or -(-(8 + len(body)) // PAGE_BYTES))
    return (size - 8).to_bytes(8, "little") + body.ljust(size - 8)


def tensor(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@given(specs=lists_of_specs(DTYPES))
def test_tensors_lie_without_holes_and_each_is_aligned_to_its_elements(specs):
    layout, at = pack(specs), 0
    for each in layout.entries:
        assert (each.start, each.end - each.start) == (at, DTYPES[each.dtype] * math.prod(each.shape))
        assert each.start % DTYPES[each.dtype] == 0
        at = each.end
    assert layout.data_bytes == at


@given(specs=lists_of_specs(DTYPES))
def test_the_widest_come_first_else_the_order_is_kept(specs):
    order = [Spec(each.name, each.dtype, each.shape) for each in pack(iter(specs)).entries]
    assert order == sorted(specs, key=lambda spec: DTYPES[spec.dtype], reverse=True)


@given(specs=lists_of_specs(DTYPES), metadata=st.dictionaries(texts, texts, max_size=4), behind=st.binary(max_size=9))
def test_what_is_written_is_read_again(specs, metadata, behind):
    layout = pack(specs)
    head = head_of(layout, metadata)
    assert len(head) % PAGE_BYTES == 0
    for data in (head, bytearray(head + behind), memoryview(head + behind)):
        assert read_head(data) == (layout, metadata, len(head))


def test_a_head_of_many_pages_is_read_again():
    layout = pack([Spec(f"layers.{number}.weight", "BF16", (64, number)) for number in range(1_000)])
    head = head_of(layout, {"turnout": 'é\\"\n' * 1_000})
    assert len(head) > 16 * PAGE_BYTES
    assert read_head(head) == (layout, {"turnout": 'é\\"\n' * 1_000}, len(head))


@given(specs=lists_of_specs(NUMPY), metadata=st.dictionaries(texts, texts, max_size=4), seed=st.integers(0, 99))
def test_safetensors_reads_a_region_as_it_is(specs, metadata, seed):
    layout = pack(specs)
    data = bytes(each & 1 for each in random.Random(seed).randbytes(layout.data_bytes))  # a BOOL is 0 or 1
    found = safetensors.numpy.load(head_of(layout, metadata) + data)
    assert set(found) == {spec.name for spec in specs}
    for each in layout.entries:
        assert found[each.name].dtype == np.dtype(NUMPY[each.dtype])
        assert found[each.name].shape == each.shape
        assert found[each.name].tobytes() == data[each.start : each.end]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_safetensors_opens_a_file_of_each_type(tmp_path, dtype):
    layout = pack([Spec("a/#0", dtype, (3, 2)), Spec("", dtype, ()), Spec("none", dtype, (0, 4))])
    file = tmp_path / "rank-00000.safetensors"
    file.write_bytes(head_of(layout, {"turnout": '{"step":7}'}) + bytes(layout.data_bytes))
    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata() == {"turnout": '{"step":7}'}
        assert sorted(opened.keys()) == ["", "a/#0", "none"]
        assert opened.get_slice("a/#0").get_dtype() == dtype
        assert [opened.get_slice(name).get_shape() for name in ("a/#0", "", "none")] == [[3, 2], [], [0, 4]]


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        pytest.param("F32", (), 4, id="a scalar"),
        pytest.param("C64", (2, 3), 48, id="a matrix"),
        pytest.param("F32", (1 << 20, 0), 0, id="nothing"),
        pytest.param("U8", (MAX_DATA_BYTES,), MAX_DATA_BYTES, id="all that a generation takes"),
        pytest.param("U8", (MAX_DATA_BYTES + 1,), None, id="one byte more"),
        pytest.param("U8", (1,) * 64, 1, id="64 dimensions"),
        pytest.param("U8", (1,) * 65, None, id="65 dimensions"),
        pytest.param("F32", (-1,), None, id="a negative dimension"),
        pytest.param("F32", (-2, -2), None, id="two negative dimensions"),
        pytest.param("F32", (1 << 62, 4), None, id="a product past 64 bits"),
        pytest.param("F32", (1 << 32, 1 << 32, 0), None, id="such a product, times nothing"),
        pytest.param("F32", (0, 1 << 60), None, id="nothing, times a dimension that no memory has"),
        pytest.param("F4", (2,), None, id="less than a byte for each element"),
        pytest.param("C128", (2,), None, id="a type that safetensors does not have"),
        pytest.param("f32", (2,), None, id="a type in small letters"),
    ],
)
def test_a_tensor_has_so_many_bytes_or_no_place(dtype, shape, expected):
    assert bytes_of(dtype, shape) == expected
    if expected is None:
        with pytest.raises(BadState) as error:
            pack([Spec("fine", "F32", ()), Spec("model/weight", dtype, shape)])
        assert error.value.path == "model/weight"
    else:
        assert pack([Spec("model/weight", dtype, shape)]).data_bytes == expected


@pytest.mark.parametrize(
    "specs",
    [
        pytest.param([Spec("a", "F32", ()), Spec("a", "F32", ())], id="a name twice"),
        pytest.param([Spec(METADATA, "F32", ())], id="the name of the metadata"),
        pytest.param([Spec("\ud800", "F32", ())], id="half a character"),
        pytest.param([Spec("a", "U8", (MAX_DATA_BYTES,)), Spec("b", "U8", ())], id="more than a generation in all"),
    ],
)
def test_what_cannot_be_laid_out_is_told(specs):
    with pytest.raises(BadState):
        pack(specs)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"turnout": "\ud800"}, id="half a character"),
        pytest.param({"\udfff": ""}, id="half a character in a key"),
    ],
)
def test_metadata_that_cannot_be_written_is_told(metadata):
    with pytest.raises(BadState):
        head_of(pack([]), metadata)


def test_a_head_that_is_whole_and_too_long_is_neither_written_nor_read():
    text = "x" * MAX_HEAD_BYTES
    with pytest.raises(BadState):
        head_of(pack([]), {"turnout": text})
    with pytest.raises(BadCheckpoint):
        read_head(head_with(json.dumps({METADATA: {"a": text}})))


def flips(head):
    """The head with each byte wrong in turn: each of its bits, and all of them."""
    for at in range(len(head)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            yield at, head[:at] + bytes([head[at] ^ flip]) + head[at + 1 :]


def test_a_wrong_byte_is_refused_or_in_a_word_where_only_the_sum_can_tell():
    """Changes that read_head lets pass are in a name, in metadata, in a type of equal width or in a size beside a 0."""
    specs = [Spec("model/a~1b", "F32", (2, 3)), Spec("é", "BF16", (7,)), Spec("#0", "I8", ()), Spec("no", "I8", (0, 4))]
    layout, metadata = pack(specs), {"turnout": '{"step":10,"tree":["dict"]}', "": "note"}
    head, data = head_of(layout, metadata), bytes(layout.data_bytes)
    words = re.compile(rb'"(?!dtype|shape|data_offsets|__metadata__)(?:\\.|[^"\\])*"(?=[:,}])|\[0,4\]')
    free = {at for word in words.finditer(head) for at in range(*word.span())}
    passed, right = set(), sum_of(head)
    for at, wrong in flips(head):
        try:
            found = read_head(wrong)
        except BadCheckpoint:
            continue
        assert found != (layout, metadata, len(head))
        assert sum_of(wrong) != right
        safetensors.deserialize(wrong + data)  # it takes what we take
        passed.add(at)
    assert passed
    assert passed <= free


TWO = {"a": tensor(), "b": tensor(offsets=(24, 48))}
HOSTILE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\0" * 7, id="less than a length"),
    pytest.param(bytes(PAGE_BYTES), id="an empty page"),
    pytest.param(b"\xff" * 8 + bytes(PAGE_BYTES), id="a length of all ones"),
    pytest.param((1 << 62).to_bytes(8, "little") + b"{}" + bytes(PAGE_BYTES), id="a length past all memory"),
    pytest.param((MAX_HEAD_BYTES + PAGE_BYTES - 8).to_bytes(8, "little") + bytes(PAGE_BYTES), id="a page too long"),
    pytest.param(head_with(json.dumps(TWO))[:-1], id="a head cut short"),
    pytest.param((2).to_bytes(8, "little") + b"{}", id="no whole page"),
    pytest.param(head_with("{}", pages=2), id="a page of spaces too many"),
    pytest.param(b"\x80\x04\x95" + bytes(2 * PAGE_BYTES), id="a pickle"),
    pytest.param(b"PK\x03\x04" + bytes(2 * PAGE_BYTES), id="a torch file"),
    pytest.param(head_with(""), id="only spaces"),
    pytest.param(head_with(" {}"), id="a space before it"),
    pytest.param(head_with("{}\n"), id="a line feed behind it"),
    pytest.param(head_with("{} {}"), id="two heads"),
    pytest.param(head_with("[]"), id="an array"),
    pytest.param(head_with("7"), id="a number"),
    pytest.param(head_with(b'{"\xff":1}'), id="no UTF-8"),
    pytest.param(head_with(b"\xef\xbb\xbf{}"), id="a byte order mark"),
    pytest.param(head_with("[" * 100_000), id="arrays in arrays in arrays"),
    pytest.param(head_with('{"a":' * 100_000), id="objects in objects in objects"),
    pytest.param(head_with('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"), id="deep, and whole"),
    pytest.param(head_with('{"a":' + "9" * 100_000 + "}"), id="a number of 100,000 digits"),
    pytest.param(head_with(json.dumps({"a": tensor(shape=[1] * 100_000)})), id="a shape of 100,000 dimensions"),
    pytest.param(head_with(json.dumps({"a": tensor(shape=[10**4_000] * 100)})), id="a product of 400,000 digits"),
]
WRONG = [
    pytest.param({"a": tensor(offsets=(0, 23))}, id="a byte short of its shape"),
    pytest.param({"a": tensor(offsets=(0, 25))}, id="a byte more than its shape"),
    pytest.param({"a": tensor(offsets=(24, 0))}, id="an end before its start"),
    pytest.param({"a": tensor(offsets=(-24, 0))}, id="a start before the data"),
    pytest.param({"a": tensor(offsets=(0, 24, 48))}, id="three offsets"),
    pytest.param({"a": tensor(offsets=(0,))}, id="one offset"),
    pytest.param({"a": tensor(offsets=(4, 28))}, id="a hole before the first"),
    pytest.param({"a": tensor(), "b": tensor(offsets=(28, 52))}, id="a hole between two"),
    pytest.param({"a": tensor(), "b": tensor(offsets=(20, 44))}, id="two that overlap"),
    pytest.param({"a": tensor(), "b": tensor()}, id="two in one place"),
    pytest.param({"b": tensor(offsets=(24, 48)), "a": tensor()}, id="another order than that of the data"),
    pytest.param({"a": tensor("U8", (1,), (0, 1)), "b": tensor("F32", (1,), (1, 5))}, id="one that is not aligned"),
    pytest.param({"a": tensor("U8", (4,), (0, 4)), "b": tensor("F32", (1,), (4, 8))}, id="a narrow one first"),
    pytest.param({"a": tensor(shape=(-2, -3))}, id="negative dimensions"),
    pytest.param({"a": tensor(shape=(1 << 32, 1 << 32), offsets=(0, 0))}, id="a product that is 0 in 64 bits"),
    pytest.param({"a": tensor(shape=(1 << 62, 4, 0), offsets=(0, 0))}, id="a product past 64 bits, times nothing"),
    pytest.param({"a": tensor("U8", (1 << 40,), (0, 1 << 40))}, id="more than a generation"),
    pytest.param(
        {"a": tensor("U8", (1 << 39,), (0, 1 << 39)), "b": tensor("U8", (1 << 39,), (1 << 39, 1 << 40))},
        id="more than a generation in all",
    ),
    pytest.param({"a": tensor(shape=(2.0, 3))}, id="a fraction for a dimension"),
    pytest.param({"a": tensor(shape=("2", 3))}, id="text for a dimension"),
    pytest.param({"a": tensor("U8", (True,), (0, 1))}, id="true for a dimension"),
    pytest.param({"a": tensor("U8", (1,), (False, True))}, id="false and true for offsets"),
    pytest.param({"a": tensor(dtype="F31")}, id="an unknown type"),
    pytest.param({"a": tensor(dtype=4)}, id="a number for a type"),
    pytest.param({"a": tensor(dtype=["F32"])}, id="an array for a type"),
    pytest.param({"a": {**tensor(), "shape": 6}}, id="a number for a shape"),
    pytest.param({"a": {**tensor(), "data_offsets": {"0": 24}}}, id="an object for offsets"),
    pytest.param({"a": {**tensor(), "strides": [3, 1]}}, id="a word too many"),
    pytest.param({"a": {"dtype": "F32", "shape": [2, 3]}}, id="a word missing"),
    pytest.param({"a": None}, id="nothing for a tensor"),
    pytest.param({"a": [0, 24]}, id="an array for a tensor"),
    pytest.param({"\ud800": tensor()}, id="half a character for a name"),
    pytest.param({METADATA: ["turnout"]}, id="an array for the metadata"),
    pytest.param({METADATA: {"step": 7}}, id="a number in the metadata"),
    pytest.param({METADATA: {"tree": {"a": "b"}}}, id="an object in the metadata"),
    pytest.param({METADATA: {"a": "\ud800"}}, id="half a character in the metadata"),
]
TWICE = [
    pytest.param('{"a":%s,"a":%s}', id="a tensor twice"),
    pytest.param('{"a":%s,"\\u0061":%s}', id="a tensor twice, once spelled with an escape"),
    pytest.param('{"__metadata__":{},"a":%s,"__metadata__":{},"b":%s}', id="the metadata twice"),
    pytest.param('{"__metadata__":{"a":"1","a":"2"},"a":%s,"b":%s}', id="a word of the metadata twice"),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_hostile_head_is_a_bad_checkpoint(data):
    with pytest.raises(BadCheckpoint):
        read_head(data)


@pytest.mark.parametrize("head", WRONG)
def test_a_head_that_cannot_have_been_packed_is_a_bad_checkpoint(head):
    with pytest.raises(BadCheckpoint):
        read_head(head_with(json.dumps(head)))


@pytest.mark.parametrize("text", TWICE)
def test_a_name_that_is_there_twice_is_a_bad_checkpoint(text):
    with pytest.raises(BadCheckpoint, match="twice"):
        read_head(head_with(text % (json.dumps(TWO["a"]), json.dumps(TWO["b"]))))


def test_the_same_head_without_a_fault_is_read():
    entries = (Entry("a", "F32", (2, 3), 0, 24), Entry("b", "F32", (2, 3), 24, 48))
    assert read_head(head_with(json.dumps(TWO))) == (Layout(entries, 48), {}, PAGE_BYTES)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["F32", "U8"])
trees = leaves | st.lists(leaves, max_size=4) | st.dictionaries(texts | st.sampled_from(list(tensor())), leaves)
tensors = st.builds(tensor, trees, st.lists(leaves, max_size=3), st.lists(leaves, max_size=3))


def is_refused_or_reads_as_itself(data):
    try:
        layout, metadata, _ = read_head(data)
    except BadCheckpoint:
        return
    assert read_head(head_of(layout, metadata))[:2] == (layout, metadata)
    if layout.data_bytes < 1 << 20:
        safetensors.deserialize(data[: read_head(data)[2]] + bytes(layout.data_bytes))


@given(head=st.dictionaries(texts | st.just(METADATA), tensors | trees, max_size=4))
@example(head={"a": tensor(offsets=(math.nan, math.inf))})
def test_random_heads_raise_nothing_else(head):
    is_refused_or_reads_as_itself(head_with(json.dumps(head)))


@given(depth=st.integers(1, 2_000))
def test_no_depth_of_nesting_raises_anything_else(depth):
    for text in ('{"a":' + "[" * depth + "]" * depth + "}", '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(BadCheckpoint):
            read_head(head_with(text))


@given(data=st.binary(max_size=64))
@example(data=b"{}")
def test_random_bytes_raise_nothing_else(data):
    for head in (data, head_with(data), head_with(b'{"a":' + data)):
        is_refused_or_reads_as_itself(head)


@pytest.mark.parametrize(
    ("size_bytes", "block_bytes"),
    [
        pytest.param(0, BLOCK_BYTES, id="nothing"),
        pytest.param(MAX_BLOCKS * BLOCK_BYTES, BLOCK_BYTES, id="as much as the smallest blocks are enough for"),
        pytest.param(MAX_BLOCKS * BLOCK_BYTES + 1, 2 * BLOCK_BYTES, id="a byte more"),
        pytest.param(MAX_BLOCKS * CHUNK_BYTES + 1, CHUNK_BYTES, id="never more than a chunk"),
    ],
)
def test_blocks_are_twice_as_large_where_they_would_be_too_many(size_bytes, block_bytes):
    assert block_bytes_of(size_bytes) == block_bytes


def test_a_head_may_be_as_long_as_safetensors_reads():
    about = MAX_HEAD_BYTES - 8 - len('{"__metadata__":}')
    assert len(join_head(b"x" * about, b"{}")) == MAX_HEAD_BYTES
    with pytest.raises(BadState, match="use tensors"):
        join_head(b"x" * (about + 1), b"{}")


def test_tensors_may_be_as_large_as_a_generation():
    head = head_with(json.dumps({"a": tensor("U8", (MAX_DATA_BYTES,), (0, MAX_DATA_BYTES))}))
    assert read_head(head)[0].data_bytes == MAX_DATA_BYTES
