"""The tree of a state: every plain value comes back as it was, tensors by name, all else is told with its path."""

import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.shard_file import METADATA, Spec, head_of, pack, read_head
from turnout.launcher.checkpoint.format.state_tree import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    MAX_VALUES,
    flatten,
    name_of,
    unflatten,
)
from turnout.launcher.errors import BadCheckpoint, BadState


class Tensor:
    """A stand-in that the tree takes for a tensor: nothing inside it is looked at."""


class Phase(enum.IntEnum):
    WARM = 1


Pair = namedtuple("Pair", "left right")
A, B, C = Tensor(), Tensor(), Tensor()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["#", "#0", "~", "/", METADATA])
integers = st.integers() | st.integers(-(1 << 300), 1 << 300)
atoms = st.none() | st.booleans() | integers | st.floats() | texts | st.binary(max_size=8)
key_atoms = st.none() | st.booleans() | integers | st.floats(allow_nan=False) | texts
keys = st.recursive(key_atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
states = st.recursive(
    atoms | st.builds(Tensor) | st.sampled_from([A, B, C]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=24,
)
scribbles = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(
            lambda word, rest: [word, *rest],
            st.sampled_from(["tensor", "list", "tuple", "dict", "ordered", "bytes", "int", "float", "made"]),
            st.lists(inner, max_size=4),
        )
        | st.dictionaries(texts, inner, max_size=2)
    ),
    max_leaves=16,
)


def is_tensor(value):
    return isinstance(value, Tensor)


def alike(one, other):
    """Equal to the bit and the type: 1 is neither True nor 1.0, nan is nan, keys are in order, tensors are the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one is other
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        return alike([*one.items()], [*other.items()])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def tensors_in(state):
    if isinstance(state, dict):
        return [found for child in state.values() for found in tensors_in(child)]
    if isinstance(state, list | tuple):
        return [found for child in state for found in tensors_in(child)]
    return [state] if is_tensor(state) else []


def nested(depth, inner=None):
    for _ in range(depth):
        inner = [inner]
    return inner


def comes_back(state, **extras):
    text, tensors = flatten(state, is_tensor, **extras)
    return unflatten(text, tensors)


@given(state=states)
def test_a_state_comes_back_as_it_was(state):
    text, tensors = flatten(state, is_tensor)
    assert alike(unflatten(text, tensors), state)
    assert set(map(id, tensors.values())) == set(map(id, tensors_in(state)))
    assert len(tensors) == len(set(map(id, tensors.values())))
    assert flatten(state, is_tensor) == (text, tensors)


@given(state=states)
def test_so_does_it_through_the_head_of_a_shard(state):
    text, tensors = flatten(state, is_tensor)
    layout, metadata, _ = read_head(head_of(pack([Spec(name, "F32", (2,)) for name in tensors]), {"turnout": text}))
    assert alike(unflatten(metadata["turnout"], {each.name: tensors[each.name] for each in layout.entries}), state)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(A, id="a tensor alone"),
        pytest.param(None, id="nothing"),
        pytest.param({}, id="an empty state"),
        pytest.param({"a": {}, "b": [], "c": ()}, id="empty branches"),
        pytest.param({0: A, "0": B, "#0": C}, id="int keys beside text of the same digits"),
        pytest.param({(0, "a/b"): A, ("0", ("a",)): B}, id="tuples as keys"),
        pytest.param({True: A, 2: B, None: C, 0.5: 1, -math.inf: 2}, id="other keys"),
        pytest.param({1 << 200: A, -(1 << 200): B}, id="big ints as keys"),
        pytest.param({"a/b": A, "a": {"b": B}, "a~1b": C}, id="a slash in a key beside a branch"),
        pytest.param({METADATA: A, "~3": B}, id="the name that safetensors keeps for itself"),
        pytest.param({"": A, "b": {"": B}}, id="empty keys"),
        pytest.param([1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 64, 10**5_000, -(10**5_000)], id="big ints"),
        pytest.param([0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1e16, 0.1], id="all floats"),
        pytest.param([math.nan, *struct.unpack("<d", bytes.fromhex("010000000000f8ff"))], id="nan, and its payload"),
        pytest.param([1, 1.0, True, "1", b"1"], id="ones of each type"),
        pytest.param(["tensor", "weight"], id="a list that reads like a tensor"),
        pytest.param([["dict", 1, 2], ("made", "x", 3), ["tensor", "#0"], A], id="lists that read like the text"),
        pytest.param({"z": 1, "a": 2, "m": OrderedDict(z=1, a=2)}, id="keys out of order"),
        pytest.param(['é\0\n"\\\U0001f600', "\u2028"], id="text that JSON escapes"),
        pytest.param(nested(MAX_DEPTH), id="as deep as can be"),
        pytest.param(nested(MAX_DEPTH, A), id="a tensor as deep as can be"),
        pytest.param(nested(MAX_DEPTH, b"x"), id="bytes as deep as can be"),
    ],
)
def test_each_value_comes_back(state):
    assert alike(comes_back(state), state)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        pytest.param(A, [""], id="a tensor alone"),
        pytest.param({"model": {"fc.weight": A}}, ["model/fc.weight"], id="keys joined"),
        pytest.param({"state": {0: {"exp_avg": A}}}, ["state/#0/exp_avg"], id="an int key"),
        pytest.param([A, (B,)], ["#0", "#1/#0"], id="places in lists and tuples"),
        pytest.param({"a/b~c": A}, ["a~1b~0c"], id="a slash and a tilde"),
        pytest.param({"#0": A}, ["~20"], id="text that begins as an int key does"),
        pytest.param({(1, "a/b"): A}, ["#(1,'a~1b')"], id="a tuple"),
        pytest.param({1 << 64: A}, ["#0x10000000000000000"], id="a big int"),
        pytest.param({METADATA: A}, ["~3"], id="what safetensors keeps for itself"),
        pytest.param({"b": A, "a": B}, ["b", "a"], id="in the order of the state"),
        pytest.param({"wte": A, "head": A}, ["wte"], id="a shared tensor has its first name"),
    ],
)
def test_tensors_are_named_by_their_keys(state, names):
    assert list(flatten(state, is_tensor)[1]) == names


@given(one=st.lists(keys, min_size=1, max_size=3), other=st.lists(keys, min_size=1, max_size=3))
@example(one=["a", "b"], other=["a/b"])
@example(one=["a~1b"], other=["a/b"])
@example(one=["#1"], other=[1])
@example(one=["1"], other=[1])
@example(one=["~3"], other=[METADATA])
@example(one=["~21"], other=["#1"])
@example(one=[("a", "b")], other=[("a','b",)])
@example(one=[("a",)], other=["('a')"])
@example(one=[None], other=["#None"])
def test_two_places_never_share_a_name(one, other):
    assert (name_of(*one) == name_of(*other)) <= (one == other)
    assert name_of(*one) != METADATA


def test_a_shared_tensor_is_saved_once_and_stays_shared():
    state = {"wte": A, "blocks": [B, A], "head": {"weight": A}}
    text, tensors = flatten(state, is_tensor)
    assert tensors == {"wte": A, "blocks/#0": B}
    loaded = {name: Tensor() for name in tensors}
    found = unflatten(text, loaded)
    assert found["wte"] is found["blocks"][1] is found["head"]["weight"] is loaded["wte"]


def test_the_caller_says_which_tensors_are_one():
    weight = torch.ones(3)
    state = {"wte": weight.detach(), "head": weight.detach(), "half": weight[:2]}
    text, tensors = flatten(state, torch.is_tensor, identity=lambda each: (each.data_ptr(), each.shape))
    assert list(tensors) == ["wte", "half"]
    assert unflatten(text, tensors)["head"] is tensors["wte"]


def test_a_list_in_two_places_is_two_lists_with_the_same_tensors():
    shared = [A]
    found = comes_back({"a": shared, "b": shared})
    assert found == {"a": [A], "b": [A]}
    assert found["a"] is not found["b"]


LOOP: list = []
LOOP.append({"a": (LOOP,)})
RING: dict = {}
RING["next"] = {"next": RING}


@pytest.mark.parametrize(
    ("state", "path", "fault"),
    [
        pytest.param({"a": {1}}, "a", "builtins.set", id="a set"),
        pytest.param({"a": [0, object()]}, "a/#1", "builtins.object", id="an object"),
        pytest.param({"optimizer": {"lr": 1j}}, "optimizer/lr", "builtins.complex", id="a complex number"),
        pytest.param({"a": bytearray(b"a")}, "a", "bytearray", id="bytes that change"),
        pytest.param({"a": len}, "a", "builtin_function", id="a function"),
        pytest.param({"a": Tensor}, "a", "builtins.type", id="a class"),
        pytest.param({"a": {"b": Phase.WARM}}, "a/b", "Phase", id="an enum, though it is an int"),
        pytest.param({"a": Pair(1, 2)}, "a", "Pair", id="a named tuple, though it is a tuple"),
        pytest.param({"a": defaultdict(int)}, "a", "defaultdict", id="a defaultdict, though it is a dict"),
        pytest.param([Counter("a")], "#0", "Counter", id="a counter"),
        pytest.param({"a/b": {"~": {1}}}, "a~1b/~0", "set", id="keys that are escaped"),
        pytest.param({"a": {frozenset(): 1}}, "a", "a key in it is a frozenset", id="a frozenset as a key"),
        pytest.param({"a": {(1, b"x"): 1}}, "a", "a key in it is a bytes", id="bytes inside a key"),
        pytest.param({"a": {math.nan: 1}}, "a", "a key in it is a float", id="nan as a key"),
        pytest.param({"a": {(math.nan,): 1}}, "a", "a key in it is a float", id="nan inside a key"),
        pytest.param({"a": {Phase.WARM: 1}}, "a", "a key in it is a Phase", id="an enum as a key"),
        pytest.param({"a": "\ud800"}, "a", "no Unicode", id="half a character"),
        pytest.param({"a": {"\udfff": A}}, "a", "no Unicode", id="half a character in a key"),
        pytest.param({"a": {("\udfff",): A}}, "a", "no Unicode", id="half a character inside a key"),
        pytest.param(LOOP, "#0/a/#0", "contains itself", id="a list inside itself"),
        pytest.param({"a": RING}, "a/next/next", "contains itself", id="a dict inside itself"),
        pytest.param(nested(MAX_DEPTH + 1), "/".join(["#0"] * MAX_DEPTH), "nested", id="too deep"),
        pytest.param("x" * MAX_TEXT_BYTES, "", "bytes of text", id="too much text"),
    ],
)
def test_what_cannot_be_saved_is_told_with_its_path(state, path, fault):
    with pytest.raises(BadState, match=fault) as error:
        flatten(state, is_tensor)
    assert error.value.path == path


@pytest.mark.slow
def test_lists_of_the_same_list_end():
    state = [0]
    for _ in range(MAX_DEPTH - 1):
        state = [state, state]
    with pytest.raises(BadState, match=str(MAX_VALUES)):
        flatten(state, is_tensor)


class Size(tuple):
    """A value that the caller takes apart."""


def plain(value):
    if isinstance(value, Size):
        return "size", list(value)
    return ("pair", {"left": value.left, "right": value.right}) if isinstance(value, Pair) else None


MADE = {"size": Size, "pair": lambda parts: Pair(**parts)}


def test_what_the_caller_takes_apart_the_caller_makes_again():
    state = {"size": Size([1, 2]), "pair": Pair(Size(), A)}
    text, tensors = flatten(state, is_tensor, plain)
    assert tensors == {"pair/right": A}
    found = unflatten(text, tensors, MADE)
    assert found == state
    assert [type(found["size"]), type(found["pair"]), type(found["pair"].left)] == [Size, Pair, Size]


def test_a_value_that_is_taken_apart_into_itself_is_told():
    with pytest.raises(BadState, match="contains itself"):
        flatten({"a": Pair(1, 2)}, is_tensor, lambda value: ("pair", value))
    with pytest.raises(BadState, match="nested"):
        flatten({"a": Pair(1, 2)}, is_tensor, lambda value: ("pair", Pair(1, 2)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("nul", id="a word cut short"),
        pytest.param("[] []", id="two values"),
        pytest.param("[" * 100_000, id="arrays in arrays in arrays"),
        pytest.param("[" * 500 + "]" * 500, id="arrays in arrays, whole"),
        pytest.param('["list",' * 70 + "1" + "]" * 70, id="lists deeper than any that is written"),
        pytest.param('["made","size",' * 70 + "1" + "]" * 70, id="made values deeper than any that is written"),
        pytest.param('["dict",' + '["tuple",' * 70 + "1" + "]" * 70 + ",1]", id="a key deeper than any"),
        pytest.param(" " * MAX_TEXT_BYTES + " 1", id="too long"),
        pytest.param("NaN", id="a nan that is no JSON"),
        pytest.param("1e999", id="a number past all numbers"),
        pytest.param("9223372036854775808", id="a whole number past 64 bits"),
        pytest.param("9" * 100_000, id="a number of 100,000 digits"),
        pytest.param('"\ud800"', id="half a character"),
        pytest.param("{}", id="an object"),
        pytest.param('{"__class__":"os.system"}', id="an object that names a function"),
        pytest.param("[]", id="an array without a word"),
        pytest.param("[1,2]", id="an array without a word before its values"),
        pytest.param('[["list"]]', id="an array for a word"),
        pytest.param('["eval","1"]', id="an unknown word"),
        pytest.param('["tensor"]', id="a tensor without a name"),
        pytest.param('["tensor","b"]', id="a tensor that is not there"),
        pytest.param('["tensor","a","a"]', id="a tensor of two names"),
        pytest.param('["tensor",["a"]]', id="a tensor whose name is an array"),
        pytest.param('["dict",1]', id="a key without a value"),
        pytest.param('["dict",1,2,1,2]', id="a key twice"),
        pytest.param('["dict",1,2,true,2]', id="a key twice: true is 1"),
        pytest.param('["ordered",["int","ff"],2,255,2]', id="a key twice, spelled otherwise"),
        pytest.param('["dict",["list"],1]', id="a list for a key"),
        pytest.param('["dict",["bytes",""],1]', id="bytes for a key"),
        pytest.param('["dict",["tensor","a"],1]', id="a tensor for a key"),
        pytest.param('["dict",["tuple",["dict"]],1]', id="a dict inside a key"),
        pytest.param('["dict",["float","7ff8000000000000"],1]', id="nan for a key"),
        pytest.param('["dict",{},1]', id="an object for a key"),
        pytest.param('["bytes","a"]', id="bytes cut short"),
        pytest.param('["bytes","é==="]', id="bytes of other letters"),
        pytest.param('["bytes","Y!Q=="]', id="bytes with a letter too many"),
        pytest.param('["bytes",1]', id="a number for bytes"),
        pytest.param('["int","1_0"]', id="a whole number with a line in it"),
        pytest.param('["int"," 1"]', id="a whole number with a space before it"),
        pytest.param('["int","1\\n"]', id="a whole number with a line feed behind it"),
        pytest.param('["int",""]', id="a whole number of no digits"),
        pytest.param('["float","7ff8"]', id="a fraction cut short"),
        pytest.param('["float","7ff800000000000g"]', id="a fraction of other letters"),
        pytest.param('["float","3ff0000000000000"]', id="a fraction that would be written as a number"),
        pytest.param('["made","other",1]', id="what nobody can make"),
        pytest.param('["made","size"]', id="what would be made of nothing"),
        pytest.param('["made","size",1]', id="what cannot be made of this"),
        pytest.param('["made","pair",["dict","left",1,"middle",2]]', id="what cannot be made of these"),
    ],
)
def test_a_hostile_text_is_a_bad_checkpoint(text):
    with pytest.raises(BadCheckpoint):
        unflatten(text, {"a": A}, MADE)


@given(depth=st.integers(MAX_DEPTH + 2, 2_000), word=st.sampled_from(["list", "tuple", "dict", "float", "eval"]))
def test_no_depth_of_nesting_raises_anything_else(depth, word):
    for opening in (f'["{word}",', f'["{word}",1,', "["):
        with pytest.raises(BadCheckpoint):
            unflatten(opening * depth + "1" + "]" * depth, {})


@given(text=st.text(max_size=40))
def test_random_text_raises_nothing_else(text):
    for hostile in (text, f'["dict",{text}]', f'["list","{text}"]'):
        try:
            found = unflatten(hostile, {"a": A}, MADE)
        except BadCheckpoint:
            continue
        assert alike(comes_back(found), found)


@given(scribble=scribbles)
def test_random_arrays_raise_nothing_else(scribble):
    try:
        found = unflatten(json.dumps(scribble), {"a": A, "": B}, MADE)
    except BadCheckpoint:
        return
    text, tensors = flatten(found, is_tensor, plain)
    assert alike(unflatten(text, tensors, MADE), found)


@given(state=states, at=st.integers(0, 10_000), letter=st.characters())
def test_one_wrong_letter_raises_nothing_else(state, at, letter):
    text, tensors = flatten(state, is_tensor)
    at %= len(text)
    try:
        unflatten(text[:at] + letter + text[at + 1 :], tensors)
    except BadCheckpoint:
        return


def test_the_state_of_a_model_and_its_optimizer_comes_back():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": 1}
    text, tensors = flatten(state, torch.is_tensor)
    assert {"model/0.weight", "optimizer/state/#0/exp_avg", "rng"} < set(tensors)
    found = unflatten(text, {name: each.clone() for name, each in tensors.items()})
    assert type(found["model"]) is OrderedDict
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert all(torch.equal(found["model"][name], each) for name, each in state["model"].items())


# The bounds.


def tuples(depth, inner=1):
    for _ in range(depth):
        inner = (inner,)
    return inner


@pytest.mark.parametrize(
    ("state", "deepest"),
    [
        pytest.param(lambda depth: tuples(depth), MAX_DEPTH, id="tuples"),
        pytest.param(lambda depth: {tuples(depth): 1}, MAX_DEPTH - 1, id="tuples in a key"),
        pytest.param(lambda depth: [{tuples(depth): 1}], MAX_DEPTH - 2, id="tuples in a key farther in"),
    ],
)
def test_no_more_is_written_than_is_read_again(state, deepest):
    assert comes_back(state(deepest)) == state(deepest)
    with pytest.raises(BadState):
        flatten(state(deepest + 1), is_tensor)


@pytest.mark.parametrize(
    ("begins", "ends", "deepest"),
    [
        pytest.param('["list",', "]", MAX_DEPTH + 1, id="lists"),
        pytest.param('["tuple",', "]", MAX_DEPTH + 1, id="tuples"),
        pytest.param('["dict","k",', "]", MAX_DEPTH + 1, id="dicts"),
        pytest.param('["ordered","k",', "]", MAX_DEPTH + 1, id="ordered ones"),
        pytest.param('["made","one",', "]", MAX_DEPTH + 1, id="what the caller makes"),
    ],
)
def test_what_is_nested_is_read_as_deep_as_it_may_be(begins, ends, deepest):
    nestings = {"one": lambda parts: parts}
    unflatten(begins * deepest + "1" + ends * deepest, {}, nestings)
    with pytest.raises(BadCheckpoint):
        unflatten(begins * (deepest + 1) + "1" + ends * (deepest + 1), {}, nestings)


def test_a_key_is_read_as_deep_as_it_may_be():
    def text(depth):
        return '["list",["dict",' + '["tuple",' * depth + "1" + "]" * depth + ",2]]"

    assert unflatten(text(MAX_DEPTH - 1), {}) == [{tuples(MAX_DEPTH - 1): 2}]
    with pytest.raises(BadCheckpoint):
        unflatten(text(MAX_DEPTH), {})


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
    assert flatten(state, is_tensor)[0] == text


def test_plain_values_may_have_as_much_text_as_is_read():
    state = "x" * (MAX_TEXT_BYTES - 2)
    assert comes_back(state) == state
