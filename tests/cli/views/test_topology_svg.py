"""`turnout topology --svg`: the map of switches as a picture."""

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.cli.views.topology import TreeNode
from turnout.cli.views.topology_svg import CELL, CLOSED, FREE, OTHER, PALETTE, svg

SVG = "{http://www.w3.org/2000/svg}"


def node(name, gpus=8, used=0, why=""):
    return TreeNode(name, frozenset([name]), gpus, used, why)


def cells(picture):
    """The number of cells of each colour, without the legend."""
    counts = Counter()
    for path in picture.iter(f"{SVG}path"):
        counts[path.get("fill")] += path.get("d").count("M")
    return counts


def drawn(paths, nodes, holders, notes=()):
    return ElementTree.fromstring(svg(paths, nodes, holders, notes))


def texts(picture):
    return [each.text for each in picture.iter() if each.text and each.text.strip()]


def test_each_gpu_is_a_cell_in_the_colour_of_its_gang():
    paths = {"a": ("spine", "leaf-1"), "b": ("spine", "leaf-1"), "c": ("spine", "leaf-2")}
    holders = {"a": {"team/large": 8}, "b": {"team/large": 4, "team/small": 2}}
    picture = drawn(paths, [node("a", used=8), node("b", used=6), node("c", why="cordoned")], holders)
    assert cells(picture) == {PALETTE[0]: 12, PALETTE[1]: 2, FREE: 2, CLOSED: 8}
    assert {"spine", "leaf-1", "leaf-2", "team/large: 12 GPUs", "team/small: 2 GPUs"} <= {*texts(picture)}
    assert "c: 0 of 8 GPUs used; cordoned" in texts(picture)


def test_the_ninth_gang_shares_one_colour_with_all_smaller_ones():
    holders = {f"n{at}": {f"team/{at}": 8} for at in range(10)} | {"n10": {"team/10": 4, "team/11": 2}}
    picture = drawn({}, [node(name, used=8) for name in holders], holders)
    assert cells(picture)[OTHER] == 22
    assert "4 more gangs: 22 GPUs" in texts(picture)


def test_a_host_of_the_map_without_a_node_is_an_empty_frame():
    picture = drawn({"gone": ("leaf",)}, [], {})
    assert cells(picture) == {}
    assert "gone: no node" in texts(picture)


def test_a_node_that_the_map_does_not_name_is_in_a_box_of_its_own():
    assert "(not on the map)" in texts(drawn({"a": ("leaf",)}, [node("a"), node("lost")], {}))


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"/><svg onload="x', "a\x1b[2J", "\u202egnp.exe", "x" * 253, "]]>&amp;"]
)
def test_what_tenants_write_is_text(name):
    picture = drawn({"a": (name,)}, [node("a", used=8, why=name)], {"a": {name: 8}}, (name,))
    assert {each.tag.removeprefix(SVG) for each in picture.iter()} <= {
        "svg",
        "title",
        "desc",
        "rect",
        "text",
        "g",
        "path",
        "line",
    }
    assert not any(character in text for text in texts(picture) for character in "\x1b\u202e")


def test_a_node_that_says_it_has_a_million_gpus_does_not_fill_the_picture():
    picture = drawn({"a": ("leaf",)}, [node("a", gpus=10**6, used=10**6)], {"a": {"team/x": 10**6}})
    assert sum(cells(picture).values()) <= 64


names = st.sampled_from(["s1", "s2", "s3", "s4"])


@example(tree={0: ("s1",), 1: ("s1",), 2: ("s1",), 3: ("s1",), 4: ("s1", "s1")}, gpus=1)
@given(
    tree=st.dictionaries(st.integers(0, 60), st.tuples(names, names) | st.tuples(names), max_size=60),
    gpus=st.integers(1, 8),
)
def test_boxes_are_nested_or_apart_and_all_is_in_the_picture(tree, gpus):
    paths = {f"n{host}": tuple(f"{depth}-{name}" for depth, name in enumerate(path)) for host, path in tree.items()}
    picture = drawn(paths, [node(host, gpus) for host in paths], {})
    width, height = (float(each) for each in picture.get("viewBox").split()[2:])
    boxes = [
        tuple(float(each.get(key)) for key in ("x", "y", "width", "height"))
        for each in picture.iter(f"{SVG}rect")
        if each.get("rx")
    ]
    for x, y, w, h in boxes:
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    for one in boxes:
        for other in boxes:
            assert one is other or is_disjoint(one, other) or inside(one, other) or inside(other, one)
    for path in picture.iter(f"{SVG}path"):
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)", path.get("d")):
            cell = (float(x), float(y), CELL - 2, CELL - 2)
            assert any(inside(cell, box) for box in boxes)


def is_disjoint(one, other):
    return (
        one[0] + one[2] <= other[0]
        or other[0] + other[2] <= one[0]
        or one[1] + one[3] <= other[1]
        or other[1] + other[3] <= one[1]
    )


def inside(one, other):
    return (
        one[0] >= other[0]
        and one[1] >= other[1]
        and one[0] + one[2] <= other[0] + other[2] + 0.01
        and one[1] + one[3] <= other[1] + other[3] + 0.01
    )


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        pytest.param(
            [node("a", used=8), node("b", why="cordoned"), node("cpu", gpus=0)],
            "1 node under 1 switch, 1 not on the map: 8 of 16 GPUs are used, 0 are free, 8 are on nodes that take no"
            " new pods.",
            id="a closed node off the map, and a node without GPUs",
        ),
        pytest.param([node("a", used=2)], "1 node under 1 switch: 2 of 8 GPUs are used, 6 are free.", id="one node"),
    ],
)
def test_the_sentence_counts_nodes_with_gpus_on_and_off_the_map(nodes, sentence):
    assert sentence in texts(drawn({"a": ("leaf-1",)}, nodes, {}))
