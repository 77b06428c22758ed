"""koordinator's ElasticQuotas: mins, what is lent of them, and what there is besides, down the tree."""

from dataclasses import replace

import pytest

from tests.jobs.test_queue import GPU, demand, limited, raw
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.accounting import room
from turnout.jobs.queues.registry import shares

LABEL = koordinator.LABEL


def quota(name, minimum, maximum, weight=None, notes=None, **marks):
    notes = dict(notes or {})
    if weight is not None:
        notes[f"{LABEL}shared-weight"] = f'{{"{GPU}": {weight}}}'
    marks = {LABEL + key.replace("_", "-"): value for key, value in marks.items()}
    return koordinator.read(raw(name, notes, marks, min={GPU: minimum}, max={GPU: maximum}))


@pytest.mark.parametrize(
    ("queues", "requests", "total", "found"),
    [
        pytest.param([quota("a", 4, 10)], {}, 4, {"a": 4}, id="alone it has its min"),
        pytest.param([quota("a", 4, 10)], {}, 7, {"a": 7}, id="and what else there is"),
        pytest.param(
            [quota("a", 4, 10), quota("b", 6, 10)], {"a": 4}, 10, {"a": 10, "b": 6}, id="and what others leave"
        ),
        pytest.param([quota("a", 4, 7), quota("b", 6, 10)], {"a": 4}, 10, {"a": 7, "b": 6}, id="up to its max"),
        pytest.param(
            [quota("a", 4, 10), quota("b", 6, 10)], {"a": 4, "b": 6}, 10, {"a": 4, "b": 6}, id="nothing is left"
        ),
        pytest.param([quota("a", 4, 10), quota("b", 6, 10)], {}, 5, {"a": 5, "b": 6}, id="its min in any case"),
        pytest.param(
            [quota("a", 4, 10), quota("b", 6, 10, allow_lent_resource="false")],
            {"a": 4},
            10,
            {"a": 4, "b": 6},
            id="nor what is not lent",
        ),
        pytest.param(
            [quota("a", 2, 20, 1), quota("b", 2, 20, 3), quota("c", 8, 20)],
            {"a": 20, "b": 20},
            12,
            {"a": 4, "b": 8, "c": 8},
            id="those in need share it by weight",
        ),
        pytest.param(
            [quota("a", 2, 20, 0), quota("b", 2, 20, 3)],
            {"a": 20, "b": 4},
            12,
            {"a": 8, "b": 3},
            id="a weight of nothing at all is the max, as koordinator has it",
        ),
        pytest.param(
            [quota("a", 4, 10, parent="x"), quota("b", 6, 10, parent="y")],
            {"a": 4},
            100,
            {"a": 4, "b": 6},
            id="of a parent that nobody describes nothing but mins is known",
        ),
        pytest.param(
            [quota("a", 4, 10, parent="x"), koordinator.read(raw("b", marks={f"{LABEL}parent": "x"}, max={GPU: 9}))],
            {"a": 9},
            100,
            {"a": 4, "b": 0},
            id="and who has no min adds nothing to them",
        ),
        pytest.param(
            [
                quota("p", 10, 10, is_parent="true"),
                quota("a", 4, 10, parent="p"),
                quota("b", 6, 10, parent="p"),
                quota("c", 2, 9),
            ],
            {"c": 2},
            20,
            {"p": 10, "a": 10, "b": 10, "c": 9},
            id="children share what their parent has",
        ),
        pytest.param(
            [quota("p", 4, 6, is_parent="true"), quota("a", 4, 20, parent="p"), quota("c", 16, 20)],
            {"a": 4, "c": 16},
            20,
            {"p": 4, "a": 4, "c": 16},
            id="and no more than it gets itself",
        ),
        pytest.param(
            [
                quota("t", 4, 8, is_root="true", notes={f"{LABEL}total-resource": f'{{"{GPU}": 12}}'}),
                quota("a", 2, 20, parent="t"),
                quota("c", 1, 90),
            ],
            {},
            90,
            {"t": 8, "a": 8, "c": 90},
            id="a tree of its own has its own whole",
        ),
        pytest.param(
            [
                quota("t", 4, 8, is_root="true", notes={f"{LABEL}total-resource": f'{{"{GPU}": 6}}'}),
                quota("a", 2, 20, parent="t"),
            ],
            {},
            90,
            {"t": 6, "a": 6},
            id="and no more",
        ),
        pytest.param(
            [quota("t", 4, 8, is_root="true"), quota("a", 2, 20, parent="t")],
            {},
            5,
            {"t": 8, "a": 8},
            id="which is its max where nothing else is told",
        ),
    ],
)
def test_what_an_elastic_quota_may_have(queues, requests, total, found):
    assert limited(koordinator.shares(queues, demand(requests=requests, total=total))) == found


@pytest.mark.parametrize(
    ("queue", "limit"),
    [
        pytest.param(raw("a", min={GPU: 4}, max={"cpu": 9}), 4, id="that names it in its min alone has its min"),
        pytest.param(
            raw("a", {f"{LABEL}shared-weight": '{"cpu": 1}'}, min={GPU: 2}, max={GPU: 9}),
            2,
            id="of whose weights it is none shares in nothing else",
        ),
        pytest.param(raw("a", min={"cpu": 4}, max={"cpu": 9}), None, id="that does not name it has no limit"),
    ],
)
def test_a_resource_is_limited_for_a_quota(queue, limit):
    assert limited(koordinator.shares([koordinator.read(queue)], demand(requests={"a": 9}, total=9))) == {"a": limit}


def test_a_tree_has_what_its_total_names_beside_its_max():
    marks, notes = {f"{LABEL}is-root": "true"}, {f"{LABEL}total-resource": '{"cpu": 3}'}
    tree = koordinator.read(raw("t", notes, marks, min={GPU: 1}, max={GPU: 8}))
    found = koordinator.shares([tree, quota("a", 1, 4, parent="t")], demand())
    assert [found[name].limit.get("cpu") for name in "ta"] == [3000, 3000]
    assert limited(found) == {"t": 1, "a": 1}  # of GPUs no total is told, so that mins alone are known


def test_a_tree_without_a_min_has_nothing_of_what_its_total_does_not_name():
    marks, notes = {f"{LABEL}is-root": "true"}, {f"{LABEL}total-resource": '{"cpu": 3}'}
    assert limited(koordinator.shares([koordinator.read(raw("t", notes, marks, max={GPU: 8}))], demand())) == {"t": 0}


def test_a_tree_of_its_own_is_below_nobody_whatever_it_says():
    queues = [quota("p", 1, 3), quota("t", 4, 8, is_root="true", parent="p")]
    found = koordinator.shares(queues, demand(total=9))
    assert (limited(found)["t"], found["t"].parent) == (8, "")


def test_who_names_no_gpu_takes_none_from_others_whatever_its_weight():
    notes = {f"{LABEL}shared-weight": f'{{"{GPU}": 5}}'}
    silent = koordinator.read(raw("a", notes, min={"cpu": 1}, max={"cpu": 1}))
    found = koordinator.shares([silent, quota("b", 1, 9)], demand(requests={"b": 9}, total=9))
    assert limited(found) == {"a": None, "b": 9}


def test_what_the_default_quotas_pods_use_is_not_there():
    queues = [quota("a", 1, 90), quota(koordinator.DEFAULT, 0, 50), quota(koordinator.ROOT, 0, 90)]
    found = koordinator.shares(queues, demand(used={koordinator.DEFAULT: 30}))
    assert limited(found) == {"a": 70, koordinator.DEFAULT: 50}


def test_where_the_default_quotas_pods_use_it_all_nothing_is_there():
    queues = [quota("a", 0, 90), quota(koordinator.DEFAULT, 0, 50)]
    for used in (100, 130):
        assert limited(koordinator.shares(queues, demand(used={koordinator.DEFAULT: used})))["a"] == 0


def test_what_siblings_use_of_their_parents_share_is_not_there():
    queues = [quota("p", 6, 10), quota("a", 2, 10, parent="p"), quota("b", 4, 10, parent="p")]
    found = koordinator.shares(queues, demand(used={"a": 3, "b": 6}, total=10))
    assert (found["p"].used[GPU], room(found, "a", GPU), room(found, "b", GPU)) == (9, 1, 1)


def test_a_child_that_says_nothing_is_bound_by_its_parent():
    child = koordinator.read(raw("a", marks={f"{LABEL}parent": "p"}))
    assert limited(koordinator.shares([quota("p", 2, 5), child], demand()))["a"] == 5


def test_the_runtime_that_koordinator_wrote_is_not_believed():
    notes = {f"{LABEL}{key}": f'{{"{GPU}": 99}}' for key in ("runtime", "guaranteed", "request", "allocated")}
    assert koordinator.read(raw("a", notes, min={GPU: 1})) == koordinator.read(raw("a", min={GPU: 1}))


@pytest.mark.parametrize(
    "notes",
    [
        {f"{LABEL}shared-weight": "heavy"},
        {f"{LABEL}shared-weight": "[" * 99_999},
        {f"{LABEL}shared-weight": "3"},
        {f"{LABEL}shared-weight": f'{{"{GPU}": "x"}}'},
        {f"{LABEL}namespaces": "team"},
        {f"{LABEL}namespaces": "[1]"},
        {f"{LABEL}namespaces": '{"team": 1}'},
    ],
)
def test_an_annotation_that_cannot_be_read_is_told(notes):
    quota = koordinator.read(raw("a", notes, min={GPU: 1}, max={GPU: 5}))
    assert (len(quota.faults), quota.sharing.weights) == (1, {GPU: 5})


def test_the_root_is_below_nobody_and_has_no_tree_of_its_own():
    for marks in ({}, {f"{LABEL}is-root": "true"}):
        root = koordinator.read(raw(koordinator.ROOT, marks=marks, max={GPU: 9}))
        assert (root.parent, root.pool) == ("", None)
    assert quota("a", 1, 2).parent == koordinator.ROOT


def test_quotas_in_a_circle_are_told():
    found = shares([quota("a", 1, 2, parent="b"), quota("b", 1, 2, parent="a")], demand())
    assert {(share.open, share.faults) for share in found.values()} == {(False, ("its parents go in a circle",))}


def test_a_pod_that_names_no_quota_is_paid_for_by_that_of_its_namespace():
    lists = quota("shared", 1, 2, notes={f"{LABEL}namespaces": '["team", "x"]'})
    mine = quota("team", 1, 2)  # stands in the namespace of its name
    assert koordinator.quota_of_namespace([lists]) == {"team": "shared", "x": "shared"}
    assert koordinator.quota_of_namespace([mine, lists]) == {"team": "team", "x": "shared"}
    assert koordinator.quota_of_namespace([quota("other", 1, 2)]) == {}
    assert (
        koordinator.quota_of_namespace([replace(lists, name=name) for name in "bac"])["x"] == "a"
    )  # the first by name
    assert koordinator.read({"spec": {}}).access.namespaces == ()
    both = quota("team", 1, 2, notes={f"{LABEL}namespaces": '["x", "team"]'})
    assert both.access.namespaces == ("team", "x")
