"""The report on a hung world, letter for letter, since people and tools read it; and its bounds."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from turnout.launcher.health.stack_traces.report import (
    MAX_GROUPS,
    MAX_TEXT_LINES,
    draw_svg,
    files,
    merge,
    text,
    verdict,
)
from turnout.launcher.health.stack_traces.stack_tree import MAX_LINES, Frame, RankStacks, Thread, WorldStacks, fold

REPORT = Path(__file__).with_name("report")
SVG = "{http://www.w3.org/2000/svg}"
LONG, FAR = "aten_" + "x" * 90, "/".join(["deep"] * 30) + "/loop.py"


def stack(*frames, main=True, line=1):
    """A frame is `function`, of train.py, or `function@file`; lines ascend."""
    parted = [frame.partition("@") for frame in frames]
    frames_of_stack = tuple(Frame(function, source or "train.py") for function, _, source in parted)
    return Thread(frames_of_stack, tuple(range(line, line + len(frames_of_stack))), main)


WAITS = stack("main", "step", f"loss@{FAR}", "all_reduce@torch/distributed/distributed_c10d.py")
PIN = stack("pin", "wait", main=False, line=0)
NATIVE = stack("clone@libc.so", f"{LONG}@libtorch.so", "ncclWait@wait.cc", main=False)
SHOWN = {
    0: RankStacks((WAITS, PIN), state="S"),
    1: RankStacks((WAITS,), (NATIVE,), "D"),
    2: RankStacks((WAITS,), (NATIVE,), "T"),
    3: RankStacks((stack("main", "save", "fsync", line=7),), (stack("clone@libc.so", "fsync@libc.so"),), "T"),
    4: RankStacks((WAITS,), state="t"),
}
WHY = "it did not answer in time" + ", and nobody knows why" * 10


WORLD = WorldStacks(7, SHOWN, {5: WHY, 6: WHY})


def test_what_is_written_is_letter_for_letter_what_people_and_tools_know():
    """After a change that is wanted: look at what is new, and write it over the file."""
    files_by_name = files(merge(WORLD))
    assert {name: raw.decode() for name, raw in files_by_name.items()} == {
        file.name: file.read_text() for file in REPORT.iterdir()
    }


def titles(drawn):
    """Give what each box shows, by its title without the holder; None for nothing."""
    return {
        box.find(f"{SVG}title").text.partition("@")[0]: getattr(box.find(f"{SVG}text"), "text", None)
        for box in ElementTree.fromstring(drawn).iter(f"{SVG}g")
    }


def below(name, count):
    """So many stacks of one rank that differ in their last frame."""
    return [stack(name, f"{name}{at:04}") for at in range(count)]


def test_a_box_of_half_a_pixel_is_drawn():
    """A picture has room for 1,580."""
    assert len(titles(draw_svg("", [], fold({0: below("all", 3_160)}), 1))) == 1 + 3_160


def test_a_narrower_box_is_not_drawn_and_what_is_beside_it_is():
    drawn = titles(draw_svg("", [], fold({0: [*below("a", 3_200), stack("z")]}), 1))
    assert drawn.keys() == {"a"}


def test_what_nobody_shows_is_an_empty_picture():
    drawn = ElementTree.fromstring(draw_svg("none", ["no rank shows any C frame"], fold({}), 3))
    assert drawn.attrib["height"] == str(10 + 24 + 18 * 3 + 18 + 10)
    assert not list(drawn.iter(f"{SVG}g"))


# A letter has 6.7 pixels, and a box 8 pixels beside its words. The ranks are `@train.py@0|`.
@pytest.mark.parametrize(
    ("count", "name", "words"),
    [
        pytest.param(1, "f" * 222, "f" * 222 + "@train.py@0|", id="all of it where there is room"),
        pytest.param(1, "f" * 223, "f" * 223 + "@0|", id="else without the file"),
        pytest.param(1, "f" * 229, "f" * 229 + "@0|", id="as long as two letters are left"),
        pytest.param(1, "f" * 230, "f" * 230 + "@t..", id="and as much as there is room for where they are not"),
        pytest.param(43, "ffffff", "ff..", id="four letters are enough"),
        pytest.param(46, "ffffff", None, id="fewer are none"),
    ],
)
def test_a_box_says_as_much_as_there_is_room_for(count, name, words):
    other_stacks = [stack(f"z{at}") for at in range(count - 1)]
    assert titles(draw_svg("", [], fold({0: [stack(name), *other_stacks]}), 1))[name] == words


@pytest.mark.parametrize(
    ("ranks_with", "colour"),
    [
        pytest.param([0, 1, 2, 3], "#d5dce4", id="all that show a stack"),
        pytest.param([0, 1], "#f3d489", id="half of them"),
        pytest.param([0], "#ee8268", id="fewer"),
    ],
)
def test_a_box_is_coloured_by_how_many_of_those_that_show_a_stack_have_it(ranks_with, colour):
    stacks_by_rank = {rank: [stack("here" if rank in ranks_with else "there")] for rank in range(4)}
    drawn = ElementTree.fromstring(draw_svg("", [], fold(stacks_by_rank), 9))
    (box,) = (each for each in drawn.iter(f"{SVG}g") if each.find(f"{SVG}title").text.startswith("here"))
    assert box.find(f"{SVG}rect").attrib["fill"] == colour


def test_a_few_lines_of_a_frame_are_told_and_none_that_is_not_known():
    node = fold({rank: [stack("f", line=rank)] for rank in range(MAX_LINES + 2)}).children[0]
    assert node.lines == tuple(range(1, MAX_LINES + 1))


def separate_stacks(count):
    """So many ranks that stand apart, each elsewhere, of twice as many that stand in one place."""
    return {rank: RankStacks((stack("main", f"f{rank}" if rank < count else "step"),)) for rank in range(3 * count)}


@pytest.mark.parametrize(("count", "more"), [(MAX_GROUPS, False), (MAX_GROUPS + 1, True)])
def test_of_many_suspects_the_first_are_told_and_the_rest_are_counted(count, more):
    text_of_verdict = verdict(merge(WorldStacks(3 * count, separate_stacks(count))))
    assert sum(" stands apart: " in line for line in text_of_verdict) == MAX_GROUPS
    assert ("and 1 more groups stand apart" in text_of_verdict) is more


def test_of_many_reasons_the_first_are_told():
    text_of_verdict = verdict(merge(WorldStacks(99, {}, {rank: f"reason {rank:02}" for rank in range(99)})))
    assert [line for line in text_of_verdict if "reason" in line] == [
        f"rank {rank}: reason {rank:02}" for rank in range(20)
    ]


@pytest.mark.parametrize(("count", "cut"), [(MAX_TEXT_LINES, False), (MAX_TEXT_LINES + 1, True)])
def test_a_tree_of_more_lines_than_anybody_reads_is_cut(count, cut):
    tree = text(
        merge(WorldStacks(1, {0: RankStacks(tuple(stack(f"f{at}", main=False) for at in range(count)))}))
    ).splitlines()
    assert [line.startswith("... the tree goes on") for line in tree].count(True) == int(cut)
    assert sum("@train.py@0|" in line for line in tree) == MAX_TEXT_LINES


def test_a_tree_is_indented_where_ranks_part_or_one_of_them_ends():
    paths = {0: ["a", "b", "c"], 1: ["a", "b", "d", "e"], 2: ["a", "b"]}
    tree_text = text(merge(WorldStacks(3, {rank: RankStacks((stack(*path),)) for rank, path in paths.items()})))
    tree = tree_text.partition("threads\n")[2]
    assert [line.partition("@")[0] for line in tree.splitlines()] == ["a", "b", "  c", "  d", "  e"]
    ends = {0: ["a"], 1: ["a", "b"]}
    tree_text = text(merge(WorldStacks(2, {rank: RankStacks((stack(*path),)) for rank, path in ends.items()})))
    assert [line.partition("@")[0] for line in tree_text.partition("threads\n")[2].splitlines()] == ["a", "  b"]
