"""The form in which benchmarks speak, and that placement measures what is committed."""

import json
import math

import pytest

from hack.bench.__main__ import as_json, main, names_of_benchmarks, run_each, runner, show, show_and_rate
from hack.bench.placement import baselines, exact, instances, mixed_sizes, streams, trickling
from hack.bench.placement.run import our_hosts
from hack.bench.support.measure import middle_ratio
from hack.bench.support.outcome import MISSED, Outcome, Scale, Table, Target, combine
from tests.topology.world import fabric, room
from turnout.topology.fabric import ring_cost

OUTCOME = Outcome(
    "a bench",
    [
        Table("rows", {"side": "", "ms": ".1f", "said": ""}, [("ours", 1.52, "fast"), ("base", math.inf, None)]),
        Table("others", {"side": "", "": "d"}, [("ours", 7)], key="others:"),
    ],
    [Target("quick", 1.5, "<=", 2), Target("fast", 1.5, ">=", 2), Target("lost", math.nan, "<=", 2)],
    more={"lost": math.nan},
)


def test_the_one_line_for_machines():
    line = json.loads(as_json("demo", OUTCOME))
    assert line == {
        "bench": "demo",
        "figures": {"ours: ms": 1.52, "base: ms": None, "others: ours": 7.0, "lost": None},
        "targets": [
            {"name": "quick", "value": 1.5, "op": "<=", "limit": 2, "met": True},
            {"name": "fast", "value": 1.5, "op": ">=", "limit": 2, "met": False},
            {"name": "lost", "value": None, "op": "<=", "limit": 2, "met": False},
        ],
    }


def test_a_table_shows_its_numbers_by_the_format_of_their_column():
    assert OUTCOME.tables[0].texts() == [["ours", "1.5", "fast"], ["base", "never", ""]]
    assert Table("", {"": "", "s": ".1f"}, [("x", math.nan)]).texts() == [["x", "-"]]


def test_two_figures_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two figures have one name"):
        _ = Outcome("a bench", OUTCOME.tables, more={"ours: ms": 1.0}).figures


def test_parts_are_combined_in_their_order_and_say_a_note_once():
    one, two = (Outcome(name, (), [Target(name, 1, "<=", 2)], ["load"], more={name: 1.0}) for name in "ab")
    found = combine("both", one, two)
    assert ([each.name for each in found.targets], list(found.figures), found.notes) == (
        ["a", "b"],
        ["a", "b"],
        ["load"],
    )


@pytest.mark.parametrize(
    ("ours", "base", "expected"),
    [
        pytest.param([1.0, 8.0, 3.0], [2.0, 2.0, 4.0], 0.75, id="the median of the ratios, not the ratio of medians"),
        pytest.param([], [], math.nan, id="nothing was measured"),
        pytest.param([1.0], [math.inf], math.nan, id="a base that was not done is no measure"),
    ],
)
def test_the_middle_ratio(ours, base, expected):
    assert middle_ratio(ours, base) == pytest.approx(expected, nan_ok=True)


def test_it_is_printed_last_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    show("demo", OUTCOME)
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["bench"] == "demo"
    assert (tmp_path / "build/bench/demo.json").read_text() == last + "\n"


def test_a_target_has_one_of_two_signs():
    with pytest.raises(ValueError, match="op is '<'"):
        Target("x", 1, "<", 2)


def test_every_module_beside_the_harness_is_a_benchmark():
    assert "placement" in names_of_benchmarks()
    assert all(callable(runner(name)) for name in names_of_benchmarks())


@pytest.mark.parametrize(
    "words",
    [[], ["--all", "placement"], ["nothing"], ["placement", "nothing"]],
    ids=["none", "both", "unknown", "one known, one unknown"],
)
def test_a_call_that_names_no_benchmark_ends_with_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_several_names_run_one_after_the_other_in_processes_of_their_own():
    ran = []

    def status(command):
        ran.append(command[2:])
        return {"recovery": MISSED, "tenants": 1}.get(command[3], 0)

    assert run_each(["recovery", "placement"], Scale.QUICK, status) == MISSED
    assert ran == [["hack.bench", "recovery", "--quick"], ["hack.bench", "placement", "--quick"]]
    assert run_each(["placement", "tenants", "recovery"], Scale.FULL, status) == 1
    assert ran[2:] == [["hack.bench", "placement"], ["hack.bench", "tenants"], ["hack.bench", "recovery"]]
    assert run_each(["placement"], Scale.FULL, status) == 0


def test_the_committed_streams_are_what_the_generator_makes():
    assert streams.read_committed() == {seed: streams.generate(seed) for seed in streams.SEEDS}


def test_a_stream_keeps_its_ceiling_and_its_sizes():
    events = streams.generate(77, 0.9)
    sizes = [event for event in events if event > 0]
    busy_gpus = 0
    for event in events:
        busy_gpus += event if event > 0 else -sizes[-event]
        assert 0 <= busy_gpus <= 0.9 * streams.NODES
    assert len(sizes) == streams.GANGS
    assert set(sizes) <= set(range(2, 25))


def test_a_policy_that_cheats_breaks_the_run():
    with pytest.raises(RuntimeError, match="wrongly or not at all"):
        streams.replay(streams.fabric(), [2, 2], lambda tree, room, pods: [0, 1])


@pytest.mark.parametrize(
    ("rooms", "pods", "hosts"),
    [
        pytest.param([2, 3, 3, 3], 3, [1, 1, 1], id="the tightest host that holds all"),
        pytest.param([2, 2, 1, 2], 3, [2, 3, 3], id="the tightest leaf, its largest host first, its last as it fits"),
        pytest.param([2, 2, 2, 3], 9, [0, 0, 1, 1, 2, 2, 3, 3, 3], id="all there is"),
        pytest.param([1, 0, 0, 0], 2, None, id="no room"),
    ],
)
def test_best_fit_by_level(rooms, pods, hosts):
    assert baselines.best_fit(fabric([2, 2]), room(*rooms), pods) == hosts


@pytest.mark.parametrize(("rooms", "pods", "hosts"), [
    pytest.param([[3, 3, 2, 1]], 7, [0, 0, 0, 1, 1, 1, 3], id="the largest hosts, the last one the tightest"),
    pytest.param([[3, 3, 2, 1]], 2, [2, 2], id="one host that holds all, the tightest"),
    pytest.param([[2, 2], [1, 2]], 3, [2, 3, 3], id="the tightest leaf"),
    pytest.param([[1, 1], [2, 2]], 5, [0, 2, 2, 3, 3], id="the hosts of both leaves form one list"),
    pytest.param([[1], [1]], 3, None, id="no room"),
])  # fmt: skip
def test_kueues_rule(rooms, pods, hosts):
    tree = fabric([len(leaf) for leaf in rooms])
    assert baselines.kueue(tree, room(*(host for leaf in rooms for host in leaf)), pods) == hosts


@pytest.mark.parametrize(
    ("rooms", "pods", "minimum"),
    [
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1], 2, 0, id="one leaf costs nothing"),
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1], 3, 2, id="two leaves of one spine"),
        pytest.param([1, 1, 1, 1, 1, 1, 1, 1], 5, 5, id="three leaves in two spines"),
        pytest.param([1, 0, 1, 0, 1, 1, 0, 0], 3, 4, id="two leaves in two spines"),
    ],
)
def test_the_exact_optimum(rooms, pods, minimum):
    assert exact.optimum(fabric([2, 2], [2, 2]), room(*rooms), pods, 10.0) == minimum


def test_no_answer_beats_the_optimum():
    for seed in range(40):
        one = instances.draw(seed)
        minimum = exact.optimum(one.fabric, one.room, one.pods, 10.0)
        assert minimum <= ring_cost(one.fabric, baselines.best_fit(one.fabric, one.room, one.pods)).total


def test_pods_that_trickle_in_shuffled_lie_as_those_that_come_together():
    rows = trickling.measure(our_hosts, [2], gangs=12)
    assert [(row.in_order, row.shuffled) for row in rows] == [(row.together, row.together) for row in rows]


def test_mixed_sizes_leave_as_many_nodes_whole_as_best_fit():
    outcome = mixed_sizes.measure([1], 300)
    whole_nodes, _, used = outcome.targets
    assert min(whole_nodes.value, used.value) > 0.95


@pytest.mark.parametrize(
    ("pods", "figures"),
    [
        pytest.param([(0.0, 8, 2.0), (1.0, 1, 2.0)], (63.0, 0.0, 8 / 512), id="a whole node and one GPU"),
        pytest.param([(0.0, 1, 9.0), *[(1.0, 8, 9.0)] * 64, (2.0, 8, 9.0)], (0.0, 2 / 65, 505 / 512), id="no room"),
    ],
)
def test_what_is_counted_of_mixed_sizes(pods, figures):
    free = [8] * mixed_sizes.NODES

    def choose(number, gpus):
        node = next((at for at, left in enumerate(free) if left >= gpus), None)
        if node is not None:
            free[node] -= gpus
        return node

    found = mixed_sizes.replay([mixed_sizes.Arrival(*each) for each in pods], choose, lambda number: None)
    assert (found.whole_nodes, found.rejected, found.used) == pytest.approx(figures)


@pytest.mark.parametrize(
    ("strict", "value", "status"),
    [
        pytest.param(False, 3, 0, id="a target that is missed is told"),
        pytest.param(True, 3, MISSED, id="of a strict one it ends the program so"),
        pytest.param(True, 1, 0, id="not one that is met"),
    ],
)
def test_the_exit_status(strict, value, status, tmp_path, monkeypatch):
    outcome = Outcome("a bench", (), (Target("quick", value, "<=", 2),), strict=strict)
    monkeypatch.chdir(tmp_path)
    assert show_and_rate("demo", outcome) == status
