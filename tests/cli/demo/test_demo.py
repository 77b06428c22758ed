"""The demo from the outside: started as a user starts it, read as a user reads it, and nothing left behind."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from turnout.cli.demo.driver import Baseline, Show, perform
from turnout.cli.demo.scenario import GPUS_PER_NODE, MAX_GANGS, ActKind, DemoGang, map_text, recable, scene
from turnout.cli.demo.screen import ExtenderCall, Pair, Score, Screen, Tally, board, requests_sentence, score, sentence
from turnout.cli.verb_support.child_programs import ExtenderFailed, extender_command, running_extender
from turnout.simulator.local_cluster import local_cluster
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map
from turnout.topology.names import TEXT_KEY

HERE = Path(__file__)
ROOT = HERE.parents[3]
PLAIN_EXTENDER = (sys.executable, str(HERE.with_name("plain_extender.py")))


def fabric_of(play):
    return build(read_map({TEXT_KEY: map_text(play.places)}).entries)


def turnout(*args, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "turnout.cli", *args],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **more},
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_scene_repeats_and_never_asks_for_more_gpus_than_there_are(seed):
    play = scene(seed, MAX_GANGS)
    assert play == scene(seed, MAX_GANGS)
    free = len(play.places) * GPUS_PER_NODE - sum(gpus for _, gpus in play.busy)
    letters = []
    for act in play.acts:
        sign = 1 if act.kind is ActKind.LEAVES else -1
        free += sign * act.gang.all_gpus
        assert free >= 0
        if sign < 0:
            letters.append(act.gang.letter)
    assert len(set(letters)) == MAX_GANGS


def test_the_board_draws_what_stands_where():
    play = scene(1, 3)
    first, second = play.places[0].name, play.places[1].name
    gang = DemoGang("A", pods=2, gpus=4)
    rows = board(play.places, [(second, 4)], [gang], {"job-a": {0: first, 1: second}})
    assert [row.leaf for row in rows] == [f"leaf-{number}" for number in range(1, 9)]
    assert rows[0].cells[:3] == ("A·", "#A", "··")


def test_crossings_are_counted_on_the_ring_of_indices():
    play = scene(1, 3)
    first_leaf, last_leaf = [p.name for p in play.places[:2]], [p.name for p in play.places[-2:]]
    gang = DemoGang("A", pods=4, gpus=8)
    in_order = score(fabric_of(play), play, gang, dict(enumerate([*first_leaf, *last_leaf])))
    mixed = score(
        fabric_of(play), play, gang, dict(enumerate([first_leaf[0], last_leaf[0], first_leaf[1], last_leaf[1]]))
    )
    assert (in_order.leaves, in_order.crossings) == (2, 4)  # two edges, each out of a leaf and out of a spine
    assert (mixed.leaves, mixed.crossings) == (2, 8)
    assert score(fabric_of(play), play, gang, {0: first_leaf[0]}) is None


def test_moved_cables_make_room_that_no_leaf_had():
    places = scene(1, 3).places
    leaf = {place.name: place.leaf for place in places}
    free = [p.name for p in places if p.leaf == "leaf-2"][:3] + [p.name for p in places if p.leaf == "leaf-5"][:2]
    change = recable(places, {place.name for place in places} - set(free), "Z")
    assert (change.leaf, change.other, change.nodes, change.gang.pods) == ("leaf-2", "leaf-5", 2, 5)
    now = {place.name: place.leaf for place in change.places}
    assert {now[name] for name in free} == {"leaf-2"}
    assert sum(now[name] != leaf[name] for name in leaf) == 4
    assert sorted(now.values()) == sorted(leaf.values())


def test_moved_cables_change_nothing_when_nothing_is_free():
    places = scene(1, 3).places
    assert recable(places, {place.name for place in places}, "Z") is None


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        pytest.param(0, 9, "Every ring stays under one leaf", id="none"),
        pytest.param(3, 9, "3.0 times fewer", id="fewer"),
        pytest.param(9, 9, "both do alike", id="the same"),
        pytest.param(9, 3, "the default scheduler did better", id="more is said too"),
        pytest.param(None, 3, "nothing to compare", id="no gang in common"),
    ],
)
def test_the_sentence_is_true_whatever_comes_out(ours, theirs, says):
    pair = Pair({} if ours is None else {"A": Score(1, ours)}, {"A": Score(1, theirs)})
    assert says in sentence(Tally((DemoGang("A", 2, 8),), pair, ()))


def test_questions_without_an_answer_are_told():
    calls = (ExtenderCall("filter", 3, 0.001, ""), ExtenderCall("filter", 3, 0.002, "down"))
    sentence = requests_sentence(Tally((), Pair({}, {}), calls))
    assert "2 times (2 filter, 0 prioritize)" in sentence
    assert "1 went without an answer" in sentence
    assert "fault" not in sentence
    assert "3 got a neutral answer" in requests_sentence(Tally((), Pair({}, {}), calls, neutral=3))


@pytest.mark.long
@pytest.mark.asyncio
async def test_an_extender_without_an_opinion_places_as_the_default_does():
    """The local cluster over HTTP and the restatement in memory are the same scheduler."""
    out = io.StringIO()
    show = Show(seed=5, gangs=4, pause_s=0.0, extender=PLAIN_EXTENDER)
    tally = await perform(show, Screen(Console(file=out, width=110)))
    assert tally.scores.ours == tally.scores.theirs
    assert len(tally.scores.ours) == 4
    assert {asking.verb for asking in tally.calls} == {"filter", "prioritize"}
    baseline = Baseline(scene(5, 4), 5)
    for act in scene(5, 4).acts:
        baseline.play(act)
    assert baseline.placements.keys() == {f"job-{letter}" for letter in "abcd"}


def test_our_extender_places_gangs_under_fewer_switches_than_the_default():
    began = time.monotonic()
    done = turnout("demo", "--fast", "--gangs", "8", "--seed", "3")
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, "")
    assert time.monotonic() - began < 60
    assert "\x1b" not in out  # no colours into a pipe
    crossings = re.search(r"ring crossings in all \*\s+(\d+)\s+(\d+)", out)
    assert int(crossings.group(1)) * 3 < int(crossings.group(2))
    assert "8 of 8" in re.search(r"gangs placed whole\s+(\d+ of \d+)", out).group(1)
    assert re.search(r"H arrives .*", out)
    assert re.search(r"The running extender took the new map\s+after \d+ ms", out)
    assert re.search(r"Asked over HTTP \d+ times", out)
    assert "went without an answer" not in out
    assert "neutral" not in out
    assert re.search(r"MakesRoom +A shrinks from 12 to 10", out)  # the second part comes after the first
    assert out.index("The running extender took") < out.index("MakesRoom") < out.index("Try next:")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(number, tmp_path):
    started = turnout("demo", TMPDIR=str(tmp_path))
    for line in started.stdout:
        if line.startswith("The extender is ready"):
            break
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    assert len(children) == 1
    started.send_signal(number)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "Traceback" not in out + err
    assert not Path(f"/proc/{children[0]}").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_demo_takes_its_extender_with_it(tmp_path):
    started = turnout("demo", TMPDIR=str(tmp_path))
    for line in started.stdout:
        if line.startswith("The extender is ready"):
            break
    (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    watched = os.pidfd_open(int(child))
    started.kill()
    started.communicate(timeout=10)
    assert select.select([watched], [], [], 10)[0] == [watched]
    os.close(watched)


@pytest.mark.asyncio
async def test_an_error_beside_a_ready_extender_is_not_taken_for_its_own(tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    async with local_cluster(kubeconfig) as cluster:
        running = running_extender(extender_command(), kubeconfig, "kube-system/map", tmp_path, cluster.session)
        with pytest.raises(TimeoutError, match="the gang waits"):
            async with running:
                raise TimeoutError("the gang waits")


@pytest.mark.asyncio
async def test_an_extender_that_does_not_start_is_told():
    broken = (sys.executable, "-c", "raise SystemExit('no such flag')")
    with pytest.raises(ExtenderFailed, match=r"exit code 1[\s\S]*no such flag"):
        await perform(Show(gangs=1, pause_s=0.0, extender=broken), Screen(Console(file=io.StringIO())))


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, runpy\n"
        "sys.argv = ['turnout', '--help']\n"
        "try: runpy.run_module('turnout.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'kubernetes', 'numpy', 'networkx', 'rich', 'msgspec', 'asyncio'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert "demo" in done.stdout
    assert "heavy: []" in done.stdout
