"""The bytes that a save copies, kept from the save before or worked out anew, are the same whatever has changed."""

import gc
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.launcher.checkpoint.engine.states import DTYPES, tensor_of, training
from turnout.launcher.checkpoint.engine.save_plan import SavePlanner
from turnout.launcher.errors import BadState

PLACES = [("model", "a"), ("model", "b"), ("model", "c"), ("optimizer", 0, "exp"), ("optimizer", 1, "exp")]
WAYS = ("as it is", "transposed", "every other one", "a parameter")
SHAPES = [(), (0,), (1,), (4,), (2, 2), (4, 1), (1, 4), (2, 3, 2)]


def state_of(dtypes):
    tensors = [tensor_of(dtype, (2, 2), seed) for seed, dtype in enumerate(dtypes)]
    return {
        "model": dict(zip("abc", tensors, strict=False)),
        "optimizer": {0: {"exp": tensors[3], "beta": [0.9, 1]}, 1: {"exp": tensors[4]}},
        "kinds": [torch.float32, np.float64(3.5), torch.Size([2, 2])],
        "step": 0,
    }


def at(state, path):
    for key in path:
        state = state[key]
    return state


def put(state, path, value):
    at(state, path[:-1])[path[-1]] = value


def other(state, draw, path):
    dtype, shape, way = (draw(st.sampled_from(each)) for each in (DTYPES, SHAPES, WAYS))
    put(state, path, tensor_of(dtype, shape, 9, way))


def moved(state, draw, path):
    put(state, path, at(state, path).clone())


def tied(state, draw, path):
    put(state, path, at(state, draw(st.sampled_from(PLACES))))


def seen_otherwise(state, draw, path):
    """The bytes of another one, perhaps in another way."""
    put(state, path, draw(st.sampled_from(VIEWS))(at(state, draw(st.sampled_from(PLACES))).detach()))


def in_place(state, draw, path):
    """Change an object in place, to another shape or another position."""
    tensor, shape = at(state, path), draw(st.sampled_from(SHAPES))
    with torch.no_grad():
        match draw(st.sampled_from(["data", "resize", "transpose", "set"])):
            case "data":
                tensor.data = tensor_of(tensor.dtype, shape, 5)
            case "resize":
                tensor.resize_(shape)
            case "transpose":
                tensor.t_()
            case "set":
                tensor.set_(tensor_of(tensor.dtype, shape, 6))


def gone(state, draw, path):
    others = [None, 1, "text", torch.zeros(0), torch.zeros(2).to_sparse(), torch.zeros(1, device="meta")]
    put(state, path, draw(st.sampled_from(others)))


def plain(state, draw, path):
    state["step"] += draw(st.sampled_from([1, 1.0, -0.0, 1 << 70]))
    state["kinds"] = [torch.float32, np.float64(draw(st.floats())), torch.Size([2, draw(st.integers(0, 9))])]
    state["optimizer"][0]["beta"][0] = draw(st.sampled_from([0.9, 0.0, -0.0, 1, True, None]))


VIEWS = [torch.Tensor.detach, torch.Tensor.t, torch._neg_view, torch.conj, torch.ravel, lambda each: each.unsqueeze(0)]
EDITS = [other, moved, tied, seen_otherwise, in_place, gone, plain, plain]
CANNOT = (RuntimeError, TypeError, AttributeError)  # torch has no such edit of such a value


def laid(laying, state, other):
    """All that it gives, or why it does not."""
    try:
        found = laying(state, other)
    except BadState as error:
        return str(error)
    arrays = [each.tolist() for each in (found.sources, found.starts, found.sizes, found.copied_as_bytes)]
    rows, elsewhere = found.pieces(1 << 40)
    ids = list(map(id, found.tensors)), [(each.data_ptr(), each.dtype, entry) for each, entry in elsewhere]
    return found.head, found.layout, arrays, rows.tolist(), ids


@settings(deadline=None)
@given(dtypes=st.lists(st.sampled_from(DTYPES), min_size=5, max_size=5), data=st.data())
def test_a_kept_layout_equals_a_new_one_whatever_changes_between_saves(dtypes, data):
    state, laying = state_of(dtypes), SavePlanner(1, 2)
    for save in range(data.draw(st.integers(2, 6))):
        for _ in range(data.draw(st.integers(0, 2))):
            edit, path = data.draw(st.sampled_from(EDITS)), data.draw(st.sampled_from(PLACES))
            with suppress(*CANNOT):
                edit(state, data.draw, path)
        other = data.draw(st.sampled_from(["", "dice", f'é{save}"\\']))
        assert laid(laying, state, other) == laid(SavePlanner(1, 2), state, other)


def test_a_state_that_is_made_anew_is_laid_out_as_before():
    laying = SavePlanner(0, 1)
    layouts = {id(laying(training(step), f"dice {step}").layout) for step in range(1, 5)}
    assert len(layouts) == 1
    state = training(9)
    assert laid(laying, state, "dice") == laid(SavePlanner(0, 1), state, "dice")


def test_what_is_kept_for_the_next_save_keeps_no_tensor_alive():
    laying, state = SavePlanner(0, 1), {"a": torch.zeros(4), "step": 1}
    laying(state), laying(state)
    reference = weakref.ref(state.pop("a"))
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("name", [1, 2], ids=["in the first save", "in one after it"])
def test_a_tensor_whose_storage_was_freed_is_told_by_its_name(name):
    laying, state = SavePlanner(0, 1), {"model": {"weight": torch.zeros(8)}}
    if name == 2:
        laying(state)
    state["model"]["weight"].untyped_storage().resize_(0)
    with pytest.raises(BadState, match=r"model/weight.*storage was freed"):
        laying(state)


CHANGES = [
    pytest.param((2, 2), torch.float32, torch._neg_view, id="seen as negative"),
    pytest.param((2, 2), torch.complex64, torch.conj, id="seen as conjugate"),
    pytest.param((2, 2), torch.float32, torch.t, id="seen transposed"),
    pytest.param((2, 2), torch.float32, torch.ravel, id="seen flat"),
    pytest.param((2, 2), torch.float32, lambda each: each.view(torch.int32), id="seen as whole numbers"),
    pytest.param((2, 2), torch.float32, lambda each: each[:1], id="only its first row"),
    pytest.param(
        (4, 1), torch.float32, lambda each: each.as_strided((4, 1), (1, 7)), id="other strides, the same bytes"
    ),
    pytest.param((2, 2), torch.float32, torch.clone, id="elsewhere"),
    pytest.param((2, 2), torch.float32, torch.nn.Parameter, id="a parameter"),
]


@pytest.mark.parametrize("is_tied", [False, True], ids=["alone", "beside one of the same bytes"])
@pytest.mark.parametrize(("shape", "dtype", "change"), CHANGES)
def test_a_tensor_that_becomes_another_one_in_its_place_is_seen(shape, dtype, change, is_tied):
    weight = tensor_of(dtype, shape)
    state, laying = {"a": weight, "b": weight if is_tied else 1}, SavePlanner(0, 1)
    laying(state)
    assert laid(laying, state, "") == laid(SavePlanner(0, 1), state, "")
    state["a"] = change(weight)
    assert laid(laying, state, "") == laid(SavePlanner(0, 1), state, "")
