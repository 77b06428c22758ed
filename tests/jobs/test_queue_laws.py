"""Laws of every queue in every dialect, whatever is written, used and asked for."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.test_queue import GPU, counts, demand
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.accounting import room
from turnout.jobs.queues.model import COHORT, Demand, Flavor, KueueTerms, QueueDialect, QueueSpec, Sharing
from turnout.jobs.queues.registry import shares

SIZES = st.integers(0, 12)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "above": st.integers(-1, 6),
            "maximum": st.none() | SIZES,
            "minimum": st.integers(0, 5),
            "own": SIZES,
            "weight": st.integers(1, 5),
            "lends": st.booleans(),
            "used": SIZES,
            "asked": SIZES,
        }
    ),
    min_size=1,
    max_size=6,
)
TOTALS = st.integers(0, 60)


def _parent(index, row, prefix="q"):
    return f"{prefix}{row['above'] % index}" if index and row["above"] >= 0 else ""


def of_capacity(rows):
    return [_volcano(i, row, deserved={GPU: row["own"]}, parent=_parent(i, row)) for i, row in enumerate(rows)]


def of_proportion(rows):
    return [_volcano(i, row) for i, row in enumerate(rows)]


def _volcano(index, row, **more):
    capability = {} if row["maximum"] is None else {GPU: row["maximum"]}
    return QueueSpec(
        f"q{index}", capability=capability, guarantee={GPU: row["minimum"]}, sharing=Sharing(row["weight"]), **more
    )


def of_koordinator(rows):
    return [
        QueueSpec(
            f"q{i}",
            QueueDialect.KOORDINATOR,
            {GPU: 12 if row["maximum"] is None else row["maximum"]},
            deserved={GPU: row["minimum"]},
            parent=_parent(i, row) or koordinator.ROOT,
            sharing=Sharing(weights={GPU: row["weight"]}, lends=row["lends"]),
        )
        for i, row in enumerate(rows)
    ]


def of_kueue(rows):
    return [
        QueueSpec(
            f"q{i}",
            QueueDialect.KUEUE,
            deserved={GPU: row["own"]},
            parent=COHORT if row["above"] >= 0 else "",
            kueue=KueueTerms((Flavor("f", GPU, row["own"], row["minimum"] if row["lends"] else None, row["maximum"]),)),
        )
        for i, row in enumerate(rows)
    ]


def of_namespaces(rows):
    return [
        QueueSpec(
            f"q{i}",
            QueueDialect.NAMESPACE,
            {GPU: 9 if row["maximum"] is None else row["maximum"]},
            deserved={GPU: row["minimum"]},
            pool={GPU: row["minimum"]},
        )
        for i, row in enumerate(rows)
    ]


DIALECTS = {
    "Volcano with capacity": of_capacity,
    "Volcano with proportion": of_proportion,
    "koordinator": of_koordinator,
    "Kueue": of_kueue,
    "ElasticQuota of scheduler-plugins": of_namespaces,
}
every_dialect = pytest.mark.parametrize("queues", list(DIALECTS.values()), ids=list(DIALECTS))


def asking(rows, total=60):
    used, requests = ({f"q{i}": row[key] for i, row in enumerate(rows)} for key in ("used", "asked"))
    return demand(used, requests, total)


def rooms(found):
    return {name: room(found, name, GPU) for name in found if name.startswith("q")}


def never_above(less, more):
    return all(more[name] is None or (less[name] is not None and less[name] <= more[name]) for name in less)


def changed(rows, index, key, by):
    return [{**row, key: row[key] + by} if i == index % len(rows) else row for i, row in enumerate(rows)]


@every_dialect
@given(ROWS, TOTALS, st.integers(0, 5), st.integers(1, 9))
def test_more_use_never_makes_more_room(queues, rows, total, who, more):
    before = rooms(shares(queues(rows), asking(rows, total)))
    after = rooms(shares(queues(rows), asking(changed(rows, who, "used", more), total)))
    assert never_above(after, before)


@every_dialect
@given(ROWS, TOTALS, st.integers(0, 5), st.integers(1, 9))
def test_what_one_asks_for_never_gives_another_more(queues, rows, total, who, more):
    before = rooms(shares(queues(rows), asking(rows, total)))
    after = rooms(shares(queues(rows), asking(changed(rows, who, "asked", more), total)))
    assert never_above(after, before)


@pytest.mark.parametrize("queues", [of_capacity, of_koordinator])
@given(rows=ROWS, total=TOTALS)
def test_a_parents_room_bounds_its_childrens(queues, rows, total):
    found = shares(queues(rows), asking(rows, total))
    for name, left in rooms(found).items():
        above = found[name].parent
        assert above not in found or room(found, above, GPU) is None or left <= room(found, above, GPU)


@given(ROWS, TOTALS)
def test_by_weight_each_has_its_guarantee_and_the_sum_is_at_most_the_total(rows, total):
    found = shares(of_proportion(rows), asking(rows, total))
    minimum = {f"q{i}": row["minimum"] for i, row in enumerate(rows)}
    deserved = {name: share.deserved.get(GPU, minimum[name]) for name, share in found.items()}
    assert all(deserved[name] >= minimum[name] for name in found)
    assert sum(deserved.values()) <= max(total, sum(minimum.values()))
    for name, share in found.items():
        assert deserved[name] <= max(minimum[name], share.limit.get(GPU, deserved[name]))


@given(ROWS, TOTALS)
def test_no_elastic_quota_has_less_than_its_min_nor_more_than_its_max(rows, total):
    rows = [{**row, "above": -1} for row in rows]
    for spec in (found := {spec.name: spec for spec in of_koordinator(rows)}).values():
        limit = shares(found.values(), asking(rows, total))[spec.name].limit[GPU]
        assert min(spec.deserved[GPU], spec.capability[GPU]) <= limit <= spec.capability[GPU]


def volcanos_loop(rows, total):
    """proportion.go, OnSessionOpen, in exact numbers and one resource: rounds of remaining x weight / weights."""
    real = [total if row["maximum"] is None else min(total, row["maximum"]) for row in rows]
    deserved, met, left = [Fraction(0)] * len(rows), set(), Fraction(total)
    while left and len(met) < len(rows):
        weights, before = sum(row["weight"] for i, row in enumerate(rows) if i not in met), list(deserved)
        for i, row in enumerate(rows):
            if i not in met:
                deserved[i] = min(deserved[i] + left * row["weight"] / weights, real[i], row["asked"])
                if deserved[i] >= row["asked"] or deserved[i] == before[i]:
                    met.add(i)
        given_out = sum(deserved) - sum(before)
        if not given_out:
            break
        left -= given_out
    return {f"q{i}": int(each) for i, each in enumerate(deserved)}


@given(ROWS, st.integers(1, 60))
def test_without_guarantees_we_share_by_weight_exactly_as_volcano_does(rows, total):
    rows = [{**row, "minimum": 0} for row in rows]
    found = shares(of_proportion(rows), asking(rows, total))
    assert {name: share.deserved[GPU] for name, share in found.items()} == volcanos_loop(rows, total)


def koordinators_loop(rows, total):
    """runtime_quota_calculator.go, redistribution and computeHamiltonDeltas: name -> runtime."""
    runtime, nodes = {}, []
    for i, row in enumerate(rows):
        if row["asked"] > row["minimum"]:
            runtime[i] = row["minimum"]
            nodes.append(i)
        else:
            runtime[i] = row["asked"] if row["lends"] else row["minimum"]
    left = total - sum(runtime.values())
    while left > 0 and nodes:
        weights = sum(rows[i]["weight"] for i in nodes)
        deltas = {i: rows[i]["weight"] * left // weights for i in nodes}
        odd = left - sum(deltas.values())
        for i in sorted(nodes, key=lambda i: (-(rows[i]["weight"] * left % weights), f"q{i}"))[:odd]:
            deltas[i] += 1
        nodes, left = [], 0
        for i, delta in deltas.items():
            runtime[i] += delta
            if runtime[i] < rows[i]["asked"]:
                nodes.append(i)
            else:
                left += runtime[i] - rows[i]["asked"]
                runtime[i] = rows[i]["asked"]
    return runtime


@given(ROWS, TOTALS, st.integers(0, 5))
def test_a_limit_is_what_koordinator_gives_a_quota_that_asks_for_its_max(rows, total, who):
    rows = [
        {**row, "above": -1, "maximum": 12 if row["maximum"] is None else max(row["maximum"], row["minimum"])}
        for row in rows
    ]
    rows = [{**row, "asked": min(row["asked"], row["maximum"])} for row in rows]
    found, who = shares(of_koordinator(rows), asking(rows, total)), who % len(rows)
    greedy = [{**row, "asked": row["maximum"]} if i == who else row for i, row in enumerate(rows)]
    limit, theirs = found[f"q{who}"].limit[GPU], koordinators_loop(greedy, total)[who]
    assert abs(limit - theirs) <= len(rows)
    if sum(row["asked"] > row["minimum"] for row in greedy) <= 1:  # nobody to round for
        assert limit == theirs


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["8", "1Gi", "1e999"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
WHOLE = {
    "metadata": {
        "name": "a",
        "namespace": "a",
        "labels": {f"{koordinator.LABEL}{key}": "true" for key in ("parent", "is-root", "allow-lent-resource")},
        "annotations": {
            "turnout.dev/headroom-gpus": "2",
            **{f"{koordinator.LABEL}{key}": '{"cpu": 1}' for key in ("shared-weight", "total-resource")},
            f"{koordinator.LABEL}namespaces": '["a"]',
        },
    },
    "spec": {
        **{key: {GPU: "4"} for key in ("capability", "deserved", "min", "max", "hard")},
        "guarantee": {"resource": {GPU: 1}},
        "weight": 1,
        **dict.fromkeys(("parent", "parentName", "cohortName", "cohort", "clusterQueue"), "p"),
        "scopes": ["NotTerminating"],
        "scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "Exists"}]},
        "stopPolicy": "None",
        "preemption": {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"},
        "resourceGroups": [
            {
                "flavors": [
                    {
                        "name": "f",
                        "resources": [{"name": GPU, "nominalQuota": 4, "lendingLimit": 1, "borrowingLimit": 2}],
                    }
                ]
            }
        ],
    },
    "status": {"state": "Open"},
}
READERS = (volcano.read, koordinator.read, kueue.read, kueue.read_cohort, namespace.read, namespace.read_elastic)


def places(document, path=()):
    yield path
    for key, value in (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    ):
        yield from places(value, (*path, key))


def spoilt(document, path, junk):
    if not path:
        return junk
    key, *rest = path
    if isinstance(document, list):
        return [spoilt(each, rest, junk) if i == key else each for i, each in enumerate(document)]
    return {**document, key: spoilt(document[key], rest, junk)}


@pytest.mark.parametrize("read", READERS)
@given(path=st.sampled_from(sorted(places(WHOLE), key=str)), junk=JUNK)
def test_whatever_is_written_is_read_or_told_and_never_raised(read, path, junk):
    spec = read(spoilt(WHOLE, path, junk))
    found = shares([spec], Demand(counts({spec.name: 3}), counts({spec.name: 3}), {GPU: 9}))
    assert found[spec.name].faults[: len(spec.faults)] == spec.faults


@pytest.mark.parametrize(
    ("read", "path"),
    [
        *((volcano.read, ("spec", key, GPU)) for key in ("capability", "deserved")),
        (volcano.read, ("spec", "guarantee", "resource", GPU)),
        *((koordinator.read, ("spec", key, GPU)) for key in ("min", "max")),
        (namespace.read, ("spec", "hard", GPU)),
        (namespace.read_elastic, ("spec", "max", GPU)),
        *(
            (read, ("spec", "resourceGroups", 0, "flavors", 0, "resources", 0, key))
            for read in (kueue.read, kueue.read_cohort)
            for key in ("nominalQuota", "lendingLimit", "borrowingLimit")
        ),
        *((read, ("spec",)) for read in READERS),
    ],
)
@pytest.mark.parametrize("junk", ["much", [], True, "1.2.3", float("nan")])
def test_an_unreadable_amount_never_silently_makes_a_queue_unlimited(read, path, junk):
    raw_queue = WHOLE | {"spec": {**WHOLE["spec"], "scopeSelector": None}}
    assert read(raw_queue).faults == ()
    assert len(read(spoilt(raw_queue, path, junk)).faults) == 1
