"""Stacks of many ranks: folded with the guide's labels, told in every form, and the rank that stands apart is named."""

import random
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.health.stack_traces.report import (
    as_json,
    draw_svg,
    find_rank_places,
    flame_lines,
    merge,
    text,
    verdict,
)
from turnout.launcher.health.stack_traces.stack_tree import (
    Frame,
    RankStacks,
    Thread,
    WorldStacks,
    all_of,
    fold,
    label,
    rank_set_text,
    set_of,
)

SVG = "{http://www.w3.org/2000/svg}"


def thread(path, *, main=True):
    """`main/step/wait` is three frames of train.py."""
    frames = tuple(Frame(function, "train.py") for function in path.split("/"))
    return Thread(frames, tuple(range(1, len(frames) + 1)), main)


def world(paths, **more):
    """Ranks 0, 1, ... whose main threads stand there; None for a rank that shows nothing."""
    stacks_by_rank = {rank: RankStacks((thread(path),)) for rank, path in enumerate(paths) if path}
    return WorldStacks(len(paths), stacks_by_rank, **more)


names = st.sampled_from(["a", "b", "c"])
threads = st.lists(names, min_size=1, max_size=4).map("/".join).map(thread)
stacks = st.dictionaries(st.integers(0, 9), st.lists(threads, max_size=3), max_size=8)


@pytest.mark.contract("DL-116", "DL-118", "DL-119")
@pytest.mark.parametrize(
    ("ranks", "of", "words"),
    [
        pytest.param([0, 1, 2, 5, 6, 7], 8, "0-2/5-7|3-4", id="the guide's own example"),
        pytest.param([6], 8, "6|0-5/7", id="one rank alone"),
        pytest.param(range(8), 8, "0-7|", id="all ranks: nobody lacks it"),
        pytest.param([0, 2, 4], 8, "0/2/4|1/3/5-7", id="no two are neighbours"),
        pytest.param([1, 2, 3, 9, 11, 12, 13, 14, 15], 16, "1-3/9/11-15|0/4-8/10", id="the guide's two machines"),
        pytest.param([], 3, "|0-2", id="nobody"),
        pytest.param([65_535], 65_536, "65535|0-65534", id="the last of as many as there can be"),
    ],
)
def test_a_label_tells_who_has_a_frame_and_who_lacks_it(ranks, of, words):
    assert label(set_of(ranks), of) == words


def ranks_in(words):
    for run in filter(None, words.split("/")):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


@pytest.mark.contract("DL-116", "DL-118", "DL-119")
@given(st.sets(st.integers(0, 200)))
def test_a_label_parts_the_ranks_in_two(ranks):
    ranks_with, lacked = label(set_of(ranks), 201).split("|")
    assert list(ranks_in(ranks_with)) == sorted(ranks)
    assert sorted([*ranks_in(ranks_with), *ranks_in(lacked)]) == list(range(201))


@given(stacks, st.randoms(use_true_random=False))
def test_the_order_of_ranks_and_threads_makes_no_difference(of, dice):
    mixed = list(of.items())
    dice.shuffle(mixed)
    assert fold({rank: dice.sample(each, len(each)) for rank, each in mixed}) == fold(of)


@given(stacks)
def test_a_frame_has_the_ranks_that_end_or_pass_there_and_loses_no_thread(of):
    tree = fold(of)
    for node in tree.each():
        below = node.ends
        for child in node.children:
            below |= child.ranks
        assert below == node.ranks
        assert [child.frame for child in node.children] == sorted({child.frame for child in node.children})
    assert sum(node.threads for node in tree.each()) == sum(map(len, of.values()))


@given(stacks)
def test_the_lines_for_flame_graphs_are_the_different_stacks_one_each(of):
    lines = flame_lines(fold(of), 10).splitlines()
    assert len(lines) == len({each.frames for threads in of.values() for each in threads})
    assert all(line.endswith(" 1") for line in lines)


CROWD = "main/step/all_reduce"


@pytest.mark.parametrize(
    ("paths", "outliers", "text"),
    [
        pytest.param([CROWD] * 7 + ["main/step/sleep"], "7", "rank 7 stands apart: sleep@train.py:3",
                     id="the one that sleeps while the others wait"),
        pytest.param([CROWD, "main/save/write/fsync", CROWD], "1",
                     "rank 1 stands apart: fsync@train.py:4, by way of save@train.py",
                     id="told where it is and where it left the others"),
        pytest.param([CROWD] * 5 + ["main/step"], "5", "rank 5 stands apart: step@train.py:2",
                     id="one that has not come as far"),
        pytest.param(["main/step"] * 5 + [CROWD], "5", "rank 5 stands apart: all_reduce@train.py:3",
                     id="one that is farther in than the others"),
        pytest.param([CROWD] * 6 + ["main/a", "main/b/c"], "6-7", "rank 6 stands apart: a@train.py:2",
                     id="two that stand apart, each elsewhere"),
        pytest.param([CROWD] * 4, "", "ranks 0-3 stand in one place: all_reduce@train.py:3", id="all in one place"),
        pytest.param([CROWD, "main/step/sleep"], "", "no place holds two thirds of the ranks, so nobody is named",
                     id="one against one names nobody"),
        pytest.param([CROWD, None, CROWD], "1", "rank 1 of 3: no stack", id="a rank that shows nothing"),
        pytest.param([None, None], "", "ranks 0-1 of 2: no stack", id="nobody shows anything: nobody stands apart"),
    ],
)  # fmt: skip
def test_who_stands_apart_is_named(paths, outliers, text):
    merged = merge(world(paths))
    assert rank_set_text(merged.places.outlier_ranks) == outliers
    assert text in verdict(merged)


@pytest.mark.contract("DL-121")
def test_the_guides_example_of_two_machines_has_two_branches():
    """DL-121: a network card was reset; some wait in one direction of the pipeline, the others in the other."""
    stuck = set_of([1, 2, 3, 9, 11, 12, 13, 14, 15])
    stacks = world([f"main/train_step/{'backward' if stuck >> rank & 1 else 'forward'}/recv" for rank in range(16)])
    lines = verdict(merge(stacks))
    assert lines[:2] == [
        "ranks 1-3/9/11-15 stand here: recv@train.py:4, by way of backward@train.py",
        "ranks 0/4-8/10 stand here: recv@train.py:4, by way of forward@train.py",
    ]
    tree = flame_lines(merge(stacks).python, 16)
    assert "main@train.py@0-15|;train_step@train.py@0-15|;backward@train.py@1-3/9/11-15|0/4-8/10;" in tree
    assert "forward@train.py@0/4-8/10|1-3/9/11-15;" in tree


@given(st.lists(st.sampled_from([CROWD, "main/step/sleep", "main/eval", None]), min_size=1, max_size=12))
def test_every_rank_is_in_one_place_at_most_and_outliers_under_a_third(paths):
    found, ranks = find_rank_places(world(paths)), set_of(rank for rank, path in enumerate(paths) if path)
    groups = [group.ranks for group in (*found.majority, *found.suspect_groups)]
    assert sum(groups) == ranks  # bits that overlapped would carry
    assert found.silent == all_of(len(paths)) & ~ranks
    assert 3 * sum(group.ranks for group in found.suspect_groups).bit_count() <= ranks.bit_count()


@pytest.mark.contract("DL-116", "DL-118", "DL-119")
def test_all_forms_tell_the_same_frames():
    merged = merge(world([CROWD] * 3 + ["main/step/sleep"], why={}))
    expected = ["main@train.py@0-3|", "step@train.py@0-3|", "sleep@train.py@3|0-2", "all_reduce@train.py@0-2|3"]
    document = msgspec.json.decode(as_json(merged))
    titles = [each.text for each in ElementTree.fromstring(drawn(merged)).iter(f"{SVG}title")]
    for frame in expected:
        assert frame in text(merged)
        assert frame in flame_lines(merged.python, 4)
        assert any(title.startswith(frame + " ") for title in titles)
        assert frame in msgspec.json.encode(document["python"]).decode()
    assert document["outliers"] == "3"
    assert document["crowd"] == [{"ranks": "0-2", "frame": "all_reduce@train.py", "lines": [3]}]


def drawn(merged):
    return draw_svg("stacks", verdict(merged), merged.python, merged.world)


evil = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["</title><script>", '"/><x', "]]>", "&amp", "\0\x1b[2J"]
)


@given(st.lists(st.builds(Frame, evil, evil), min_size=1, max_size=5), evil)
@settings(max_examples=scaled(50))
def test_with_any_names_the_picture_is_well_formed_with_our_elements_only(frames, why):
    one = RankStacks((Thread(tuple(frames), (0,) * len(frames), True),))
    root = ElementTree.fromstring(drawn(merge(WorldStacks(3, {0: one}, {2: why}))))
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {"svg", "style", "rect", "text", "g", "title"}


def test_a_box_below_another_lies_within_it_and_neighbours_do_not_overlap():
    dice = random.Random(5)
    stacks = world(["/".join(dice.choices("abcd", k=dice.randint(1, 6))) for _ in range(64)])
    rows = {}
    for group in ElementTree.fromstring(drawn(merge(stacks))).iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect").attrib
        rows.setdefault(float(box["y"]), []).append((float(box["x"]), float(box["x"]) + float(box["width"])))
    above = [(10.0, 1590.0)]
    for y in sorted(rows):
        row = sorted(rows[y])
        assert all(left[1] <= right[0] + 0.02 for left, right in pairwise(row))
        assert all(any(a - 0.02 <= x and end <= b + 0.02 for a, b in above) for x, end in row)
        above = row
