"""A kept tree: the text of a state that is walked by it is to the byte what the whole walk writes, or it is not walked.

Which tensors are one is looked at by who keeps it: here both ways are compared where that is as it was.
"""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.checkpoint.format.test_state_tree import (
    A,
    B,
    C,
    Phase,
    Tensor,
    atoms,
    is_tensor,
    keys,
    nested,
    states,
    tensors_in,
)
from turnout.launcher.checkpoint.format.shard_file import escape_text
from turnout.launcher.checkpoint.format.state_tree import MAX_DEPTH, cache_tree, flatten


class Text(str):
    """No plain text, though equal to one."""


class Array:
    """The class of value that `plain` makes."""

    def __init__(self, *numbers):
        self.numbers = numbers


def plain(value):
    return ("array", list(value.numbers)) if isinstance(value, Array) else None


def paths(state, at=()):
    """To everything in it."""
    yield at
    if isinstance(state, dict | list | tuple):
        children = state.items() if isinstance(state, dict) else enumerate(state)
        for key, child in children:
            yield from paths(child, (*at, key))


def put(state, path, value):
    """Make the state anew, as each state_dict() does, with another value at this path."""
    if not path:
        return value
    if isinstance(state, dict):
        return type(state)(
            (key, put(child, path[1:], value) if key is path[0] else child) for key, child in state.items()
        )
    return type(state)(put(child, path[1:], value) if at == path[0] else child for at, child in enumerate(state))


def at(state, path):
    for key in path:
        state = state[key]
    return state


def cousins(value):
    """Give values that this one could be taken for."""
    found = [value]
    if isinstance(value, dict):
        found += [dict(value), OrderedDict(value), OrderedDict(reversed(value.items())), {**value, "one more": 1}]
        found += [{str(key): child for key, child in value.items()}, list(value.items())]
        found += [{bool(key) if key in (0, 1) else key: child for key, child in value.items()}]
        found += [{-key if type(key) is float else key: child for key, child in value.items()}]
    elif isinstance(value, list | tuple):
        found += [list(value), tuple(value), [*value, None], value[1:]]
    elif isinstance(value, int | float):
        found += [float(value) if abs(value) < 1e300 else value, -value, value + 1, bool(value), value == value and 0.0]
    elif isinstance(value, str):
        found += [value + '"\\', value.encode(), value[:-1]]
    return st.sampled_from(found)


def ones(state):
    """Which of its tensors are one."""
    first = {}
    return [first.setdefault(id(tensor), place) for place, tensor in enumerate(tensors_in(state))]


@given(state=states, data=st.data())
def test_the_text_of_a_cached_tree_equals_that_of_a_whole_walk(state, data):
    tree = cache_tree(state, is_tensor, plain, id)
    alias = ones(state)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(paths(state))))
        new = data.draw(cousins(at(state, path)) | atoms | st.sampled_from([A, B, C]) | states)
        state = put(state, path, new)
        found = tree.walk(state) if tree is not None else None
        if found is not None and ones(state) == alias:
            assert list(map(id, found)) == list(map(id, tensors_in(state)))
            assert tree.text() == escape_text(escape_text(flatten(state, is_tensor, plain)[0].encode()))


@given(state=st.dictionaries(st.text(max_size=3), states, max_size=3))
def test_a_state_that_is_made_anew_alike_is_walked_by_it(state):
    tree = cache_tree(state, is_tensor, plain, id)
    if tree is None:  # of some kinds of keys none is kept
        return
    assert list(map(id, tree.walk(put(state, (), dict(state))))) == list(map(id, tensors_in(state)))
    assert tree.text() == escape_text(escape_text(flatten(state, is_tensor, plain)[0].encode()))


CHANGES = [
    pytest.param({"a": 1}, {"a": True}, False, id="a number that becomes a truth"),
    pytest.param({"a": 1}, {"a": 2}, True, id="another number"),
    pytest.param({"a": 0.0}, {"a": -0.0}, True, id="a zero of the other sign"),
    pytest.param({"a": 1}, {"a": Phase.WARM}, False, id="a number that becomes one of an enum"),
    pytest.param({"a": "b"}, {"a": Text("b")}, False, id="text of a kind of its own"),
    pytest.param(
        {"a": 'quo"tes\\'}, {"a": "é\n\0\x7f\U0001f600'\""}, True, id="text that has to be escaped, and twice"
    ),
    pytest.param({"a": "b"}, {"a": "\ud800"}, False, id="text that is no Unicode"),
    pytest.param({"a": A}, {"b": A}, False, id="a tensor of another name"),
    pytest.param({"a": A}, {Text("a"): A}, False, id="a name of a kind of its own"),
    pytest.param({1: A}, {True: A}, False, id="a number among the keys that becomes a truth"),
    pytest.param({1: A}, {1.0: A}, False, id="a number among the keys that becomes a fraction"),
    pytest.param({"a": A, "b": B}, {"b": B, "a": A}, False, id="another order"),
    pytest.param({"a": A, "b": 1}, {"a": 1, "b": A}, False, id="a tensor and a number that change places"),
    pytest.param({"a": A}, {"a": B}, True, id="another tensor of the kind"),
    pytest.param({"a": [1, 2]}, {"a": [1, 2, 3]}, False, id="a list that grows"),
    pytest.param({"a": [1, 2]}, {"a": (1, 2)}, False, id="a list that becomes a tuple"),
    pytest.param({"a": {}}, {"a": OrderedDict()}, False, id="a dict that becomes an ordered one"),
    pytest.param({"a": {"b": {}}}, {"a": {"b": {"c": 1}}}, False, id="a branch that has something now"),
    pytest.param({"a": Array(1)}, {"a": Array(2, 3)}, True, id="what is made of other values"),
    pytest.param({"a": Array(1), "b": A}, {"a": Array(1, A), "b": A}, False, id="a tensor hidden in what is made"),
    pytest.param({"a": Array(1)}, {"a": Array(object())}, False, id="what is made of what cannot be saved"),
    pytest.param({"a": 1}, {"a": Tensor()}, False, id="a tensor in the place of a number"),
    pytest.param({"a": nested(MAX_DEPTH - 2)}, {"a": nested(MAX_DEPTH)}, False, id="a tree that is too deep now"),
    pytest.param({"a": 1}, [("a", 1)], False, id="another kind of state"),
]


@pytest.mark.parametrize(("before", "now", "paths"), CHANGES)
def test_what_is_seen_between_two_saves(before, now, paths):
    tree = cache_tree(before, is_tensor, plain, id)
    assert tree.walk(before) is not None
    assert (tree.walk(now) is not None) is paths
    if paths:
        assert tree.text() == escape_text(escape_text(flatten(now, is_tensor, plain)[0].encode()))
    assert tree.walk(before) is not None
    assert tree.text() == escape_text(escape_text(flatten(before, is_tensor, plain)[0].encode()))


def test_a_value_made_of_others_is_looked_at_though_it_is_the_same_object():
    array = Array(1)
    tree = cache_tree({"a": array}, is_tensor, plain, id)
    tree.walk({"a": array})
    array.numbers = (2,)
    assert tree.walk({"a": array}) == []
    assert tree.text() == escape_text(escape_text(flatten({"a": array}, is_tensor, plain)[0].encode()))


@given(key=keys.filter(lambda key: isinstance(key, float | tuple)))
def test_keys_that_may_be_equal_and_yet_others_are_walked_each_time(key):
    assert cache_tree({"a": {key: A}}, is_tensor, plain, id) is None


@pytest.mark.parametrize("state", [A, None, 1, "text", Array(1)])
def test_a_state_that_is_no_tree_is_walked_each_time(state):
    assert cache_tree(state, is_tensor, plain, id) is None
