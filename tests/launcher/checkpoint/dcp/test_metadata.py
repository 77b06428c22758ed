"""The metadata of torch.distributed.checkpoint, as JSON and back, and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

from turnout.launcher.checkpoint.dcp import metadata
from turnout.launcher.checkpoint.dcp.metadata import Chunk, Table, Tensor
from turnout.launcher.errors import BadCheckpoint

names = st.text(max_size=5)
sizes = st.integers(0, 1 << 40)


@st.composite
def tables(draw):
    tensors = {}
    for name in draw(st.lists(names, max_size=3, unique=True)):
        dims = draw(st.integers(0, 3))
        chunk = st.tuples(*[st.tuples(sizes, sizes)] * dims)
        chunks = draw(st.lists(chunk, min_size=1, max_size=3))
        size = tuple(max(sum(each[dim]) for each in chunks) for dim in range(dims))
        parts = [Chunk(tuple(at for at, _ in each), tuple(part for _, part in each), 1) for each in chunks]
        tensors[name] = Tensor(draw(st.sampled_from(["float32", "bfloat16", "bool"])), size, parts, draw(st.booleans()))
    values = draw(st.dictionaries(names.filter(lambda name: name not in tensors), st.integers(0, 1), max_size=3))
    paths = draw(st.dictionaries(names, st.lists(st.one_of(names, st.integers(0, 9)), max_size=3), max_size=3))
    return Table(1, "0123456789abcdef" * 2, 2, tensors, values, paths)


@given(tables())
def test_metadata_comes_back_as_it_was_and_is_what_dcp_knows(table):
    assert metadata.read(metadata.write(table)) == table
    known = metadata.metadata_of(table)
    assert known.state_dict_metadata.keys() == table.tensors.keys() | table.values.keys()
    assert known.planner_data == {key: tuple(path) for key, path in table.paths.items()}
    for key, tensor in table.tensors.items():
        found = known.state_dict_metadata[key]
        assert isinstance(found, TensorStorageMetadata)
        assert isinstance(found.properties, TensorProperties)
        assert (found.size, f"torch.{tensor.dtype}") == (torch.Size(tensor.size), str(found.properties.dtype))
        assert [(tuple(each.offsets), tuple(each.sizes)) for each in found.chunks] == [
            (each.offsets, each.sizes) for each in tensor.chunks
        ]


@given(tables(), st.data())
def test_whatever_else_it_is_is_no_metadata(table, data):
    text = metadata.write(table)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(BadCheckpoint):
        metadata.read(cut + data.draw(st.binary(max_size=4).filter(lambda more: cut + more != text)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            '"tensors":{"w":{"dtype":"float32","size":[2],"chunks":[[[1],[2],0]]}}', id="a chunk that sticks out"
        ),
        pytest.param('"tensors":{"w":{"dtype":"float32","size":[2],"chunks":[[[0],[2],5]]}}', id="a rank that is not"),
        pytest.param(
            '"tensors":{"w":{"dtype":"float32","size":[2],"chunks":[[[],[2],0]]}}', id="a chunk in no dimension"
        ),
        pytest.param('"tensors":{"w":{"dtype":"Tensor","size":[],"chunks":[]}}', id="a dtype that is none"),
        pytest.param('"tensors":{"w":{"dtype":"bool","size":[-1],"chunks":[]}}', id="a negative size"),
        pytest.param('"tensors":{},"more":1', id="a field that nobody knows"),
    ],
)
def test_metadata_that_cannot_be_is_refused(text):
    head = f'{{"version":1,"save":"{"0" * 32}","world":2,"values":{{}},"paths":{{}},'
    assert metadata.read(f'{head}"tensors":{{}}}}'.encode())
    with pytest.raises(BadCheckpoint):
        metadata.read(f"{head}{text}}}".encode())


@given(names, names, st.lists(st.integers(0, 99), max_size=3), st.lists(st.integers(0, 99), max_size=3))
def test_no_two_chunks_have_one_name(one, other, first_name, second_name):
    same_place = (one, first_name) == (other, second_name)
    assert (metadata.chunk_name(one, first_name) == metadata.chunk_name(other, second_name)) == same_place
