"""Kueue's ClusterQueues and cohorts: what is available, by flavor, and what makes elastic jobs a risk."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.test_queue import GPU, TOTAL, counts, demand, gpus, limited, own, raw
from turnout.jobs.queues import kueue
from turnout.jobs.queues.accounting import charge, holds, room
from turnout.jobs.queues.model import COHORT, Demand
from turnout.jobs.queues.registry import limits, shares

NEEDS = ((GPU, 1),)


def groups(nominal, lending=None, borrowing=None, flavor="f"):
    resource = {"name": GPU, "nominalQuota": nominal}
    resource |= {} if lending is None else {"lendingLimit": lending}
    resource |= {} if borrowing is None else {"borrowingLimit": borrowing}
    return [{"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": [resource]}]}]


def cluster_queue(name, nominal, cohort="", lending=None, borrowing=None, flavor="f", notes=None, **more):
    return kueue.read(
        raw(name, notes, resourceGroups=groups(nominal, lending, borrowing, flavor), cohortName=cohort, **more)
    )


def cohort(name, nominal=0, parent="", lending=None, borrowing=None):
    return kueue.read_cohort(raw(name, resourceGroups=groups(nominal, lending, borrowing), parentName=parent))


@pytest.mark.parametrize(
    ("queues", "used", "found"),
    [
        pytest.param([cluster_queue("a", 8)], {"a": 3}, {"a": 8}, id="alone it has its quota"),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "c")], {"a": 8}, {"a": 12, "b": 4}, id="a cohort's, too"
        ),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "c")],
            {"b": 3},
            {"a": 9, "b": 12},
            id="as far as it is left",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c", borrowing=1), cluster_queue("b", 4, "c")],
            {},
            {"a": 9, "b": 12},
            id="no more than it may borrow",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c", lending=2), cluster_queue("b", 4, "c")],
            {},
            {"a": 12, "b": 6},
            id="no more than others lend",
        ),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "d")], {}, {"a": 8, "b": 4}, id="not of another cohort"
        ),
        pytest.param(
            [cluster_queue("a", 8, "c"), cluster_queue("b", 4, "c", flavor="g")],
            {},
            {"a": 8, "b": 4},
            id="not of another flavor",
        ),
        pytest.param(
            [cluster_queue("a", 1, "c"), cohort("c", 5, "d"), cluster_queue("b", 2, "d"), cohort("d", 7)],
            {},
            {"a": 15, "b": 15},
            id="what cohorts have besides, and those above them",
        ),
        pytest.param(
            [cluster_queue("a", 1, "c"), cohort("c", 5, "d", lending=2, borrowing=1), cluster_queue("b", 2, "d")],
            {},
            {"a": 7, "b": 4},
            id="cohorts have limits, too",
        ),
    ],
)
def test_what_a_cluster_queue_may_have(queues, used, found):
    assert gpus(limits(queues, counts(used), TOTAL), found) == found


def test_who_is_above_a_cohort():
    assert [cohort("c").parent, cohort("c", parent="d").parent] == ["", "cohort/d"]


def test_shares_are_of_queues_and_of_the_cohorts_that_they_name():
    assert shares([cluster_queue("a", 4)], demand()).keys() == {"a"}
    assert shares([cluster_queue("a", 4, "c")], demand()).keys() == {"a", "cohort/c"}


def test_what_anybody_calls_the_use_of_a_cohort_is_not_charged():
    """A pod may name any queue; nobody submits to a cohort."""
    found = shares([cluster_queue("a", 4, "c"), cohort("c", 2)], demand(used={"cohort/c": 5}))
    assert room(found, "a", GPU) == 6


def test_a_resource_of_which_no_quota_is_said_has_none():
    groups = [{"flavors": [{"name": "f", "resources": [{"name": GPU}]}]}]
    assert kueue.read(raw("a", resourceGroups=groups)).deserved == {GPU: 0}


def test_a_queue_in_a_cohort_can_have_what_others_only_borrow_of_it():
    found = kueue.shares([cluster_queue("a", 4, "c"), cluster_queue("b", 4, "c")], demand(used={"b": 8}))
    used = {name: dict(share.used) for name, share in found.items()}
    assert (limited(found)["a"], own(found)["a"], holds(found, used, "a", NEEDS, 4)) == (8, 4, False)
    charge(found, used, "b", NEEDS, -4)  # elastic workers leave
    assert (holds(found, used, "a", NEEDS, 4), holds(found, used, "a", NEEDS, 5)) == (True, False)


@pytest.mark.parametrize("key", ["cohort", "cohortName"])
def test_the_cohort_stands_in_either_version(key):
    assert kueue.read(raw("a", **{key: "c"})).parent == "cohort/c"


@pytest.mark.parametrize(("policy", "is_open"), [("None", True), ("", True), ("Hold", False), ("HoldAndDrain", False)])
def test_a_stopped_queue_is_closed(policy, is_open):
    assert kueue.read(raw(stopPolicy=policy)).open is is_open
    assert kueue.accepts_workloads(raw(stopPolicy=policy)) is is_open


@pytest.mark.parametrize(
    ("strategy", "strict"),
    [({"queueingStrategy": "StrictFIFO"}, True), ({"queueingStrategy": "BestEffortFIFO"}, False), ({}, False)],
)
def test_a_strict_queue_is_known(strategy, strict):
    assert kueue.read(raw(**strategy)).strict is strict


def test_a_job_of_several_flavors_is_not_resized_as_its_own_is_unknown():
    flavors = [{"name": n, "resources": [{"name": GPU, "nominalQuota": "4"}]} for n in ("a100", "h100")]
    queue = kueue.read(raw("a", resourceGroups=[{"flavors": flavors}], cohortName="c"))
    other = kueue.read(raw("b", resourceGroups=groups(2, flavor="h100"), cohortName="c"))
    found = kueue.shares([queue, other], demand(used={"a": 3}))
    assert (queue.deserved, limited(found)["a"]) == ({GPU: 8}, 10)
    assert (
        found["a"].refused
        == "ClusterQueue a has several flavors of nvidia.com/gpu: which one a job was given is not known"
    )
    assert (found["b"].refused, room(found, "b", GPU)) == ("", 3)  # of six, if all that is used is of its flavor
    assert room(found, "a", GPU) == 7  # of all that it may have: no flavor above is known to be the one
    full = kueue.shares([queue, other], demand(used={"a": 9}))
    assert room(full, "b", GPU) == 0  # no flavor is charged with more than there is of it


def test_of_several_flavors_nothing_is_known_to_be_kept_for_a_job():
    resource = {"name": GPU, "nominalQuota": 4, "lendingLimit": 1}
    flavors = [{"name": name, "resources": [resource]} for name in ("a100", "h100")]
    queue = kueue.read(raw("a", resourceGroups=[{"flavors": flavors}], cohortName="c"))
    assert kueue.shares([queue], demand())["a"].guaranteed == {}
    assert kueue.shares([cluster_queue("a", 4, "c", lending=1)], demand())["a"].guaranteed == {GPU: 3}


def test_a_queue_that_preempts_within_itself_is_a_hazard():
    queues = [cluster_queue("a", 8, preemption={"withinClusterQueue": "LowerPriority"}), cluster_queue("b", 8)]
    found = kueue.shares(queues, demand())
    assert found["a"].eviction_risk == (
        "Kueue may evict a whole job to make room for another job of its ClusterQueue: "
        "preemption.withinClusterQueue of a is LowerPriority, not Never"
    )
    assert found["b"].eviction_risk == ""


def test_elastic_workers_stay_within_own_quota_where_reclaim_evicts():
    reclaims = {"reclaimWithinCohort": "Any"}
    queues = [
        cluster_queue("a", 4, "c", preemption=reclaims),
        cluster_queue("b", 6, "c", notes={"turnout.dev/headroom-gpus": "1"}),
        cluster_queue("d", 3, "e", preemption=reclaims),
        cluster_queue("f", 3, "g"),
        cluster_queue("h", 2, "c", borrowing=0),
    ]
    found = kueue.shares(queues, demand())
    headroom = gpus({name: found[name].headroom for name in "abdfh"})
    assert (limited(found)["b"], headroom) == (12, {"a": None, "b": 7, "d": None, "f": None, "h": 0})


def test_cohorts_in_a_circle_are_at_fault_with_all_their_queues():
    queues = [cohort("c", parent="d"), cohort("d", parent="c"), cluster_queue("a", 4, "c"), cluster_queue("b", 4)]
    found = shares(queues, demand())
    assert {name for name, share in found.items() if share.faults and not share.open} == {"a", "cohort/c", "cohort/d"}


def test_what_cannot_be_read_of_a_cohort_is_a_fault_of_its_queues():
    bad = kueue.read_cohort(raw("c", resourceGroups=groups(4, borrowing="much"), parentName="d"))
    found = shares([bad, cluster_queue("a", 4, "c"), cluster_queue("b", 4, "d")], demand())
    assert (len(found["a"].faults), found["b"].faults) == (1, ())


def test_a_resource_named_twice_in_a_flavor_is_told():
    twice = [{"flavors": [{"name": "f", "resources": [{"name": GPU, "nominalQuota": 4}] * 2}]}]
    assert len(kueue.read(raw(resourceGroups=twice)).faults) == 1


def test_a_resource_without_a_name_is_told_and_those_behind_it_count():
    resources = [{"nominalQuota": 9}, {"name": GPU, "nominalQuota": 4}]
    queue = kueue.read(raw(resourceGroups=[{"flavors": [{"name": "f", "resources": resources}]}]))
    assert (queue.deserved, len(queue.faults)) == ({GPU: 4}, 1)


def test_a_local_queue_leads_to_a_cluster_queue():
    assert kueue.local_queue(raw("lq", clusterQueue="cq")) == ("team/lq", "cq")


SIZES = st.integers(0, 9)
LIMITS = st.none() | SIZES
QUOTA = st.tuples(SIZES, LIMITS, LIMITS)
TREES = st.tuples(
    st.lists(st.tuples(QUOTA, st.integers(0, 9)), min_size=1, max_size=4),  # cohorts, each below an earlier one or none
    st.lists(st.tuples(QUOTA, st.integers(0, 9), SIZES), min_size=1, max_size=5),  # queues: quota, where, used
)


def planted(tree):
    """The tree as objects, and as {name: (quota, parent, used)}; cohort 0 is described only by those below it."""
    cohorts, queues = tree
    events, plain = [], {}
    for index, (quota, where) in enumerate(cohorts):
        parent = f"{COHORT}{where % index}" if index and where else ""
        plain[f"{COHORT}{index}"] = (quota if index else (0, None, None), parent, 0)
        if index:
            events.append(cohort(str(index), quota[0], parent.removeprefix(COHORT), *quota[1:]))
    for index, (quota, where, used) in enumerate(queues):
        parent = f"{COHORT}{where % len(cohorts)}" if where else ""
        plain[f"q{index}"] = (quota, parent, used)
        events.append(cluster_queue(f"q{index}", quota[0], parent.removeprefix(COHORT), *quota[1:]))
    return events, plain


class Restated:
    """docs/facts/autoscaling.md 6, word by word and without any thought of speed."""

    def __init__(self, plain):
        self.plain = plain

    def below(self, name):
        return [child for child, (_, parent, _) in self.plain.items() if parent == name]

    def subtree(self, name):
        return self.plain[name][0][0] + sum(self.subtree(child) - self.local(child) for child in self.below(name))

    def local(self, name):
        lending = self.plain[name][0][1]
        return 0 if lending is None else max(0, self.subtree(name) - lending)

    def usage(self, name):
        return self.plain[name][2] + sum(max(0, self.usage(child) - self.local(child)) for child in self.below(name))

    def available(self, name):
        (_, _, borrowing), parent, _ = self.plain[name]
        subtree, local, usage = self.subtree(name), self.local(name), self.usage(name)
        if parent not in self.plain:
            return subtree - usage
        above = self.available(parent)
        if borrowing is not None:
            above = min(above, (subtree - local) - max(0, usage - local) + borrowing)
        return max(0, local - usage) + above


def used_of(plain):
    return {name: {GPU: used} for name, (_, _, used) in plain.items() if not name.startswith(COHORT)}


@given(TREES)
def test_room_is_what_kueue_calls_available(tree):
    queues, plain = planted(tree)
    restated, found = Restated(plain), kueue.shares(queues, Demand(used_of(plain), total=TOTAL))
    for name in plain:
        if not name.startswith(COHORT):
            assert room(found, name, GPU) == restated.available(name)


@given(TREES, st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 5)), max_size=6))
def test_charging_is_the_same_as_looking_again(tree, changes):
    queues, plain = planted(tree)
    used = used_of(plain)
    found = kueue.shares(queues, Demand(used))
    now = {name: dict(share.used) for name, share in found.items()}
    for which, pods in changes:
        name = f"q{which}"
        if name not in used or used[name][GPU] + pods < 0:
            continue
        new_shares = kueue.shares(queues, Demand(used))
        if pods > 0:
            assert holds(found, now, name, NEEDS, pods) is (room(new_shares, name, GPU) >= pods)
        charge(found, now, name, NEEDS, pods)
        used[name] = {GPU: used[name][GPU] + pods}
        new_shares = kueue.shares(queues, Demand(used))
        assert {n: +Counter(now[n]) for n in new_shares if n in now} == {
            n: +Counter(s.used) for n, s in new_shares.items()
        }
