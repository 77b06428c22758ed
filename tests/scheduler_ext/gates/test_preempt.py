"""A gang behind its gates preempts: the cheapest domain is emptied of exactly who must leave, and held for it."""

import pytest

from tests.kit import cluster
from tests.scheduler_ext.gates.gated_world import Api, Killed, Writer, gang
from turnout.kube.cli_flags import BadSetting
from turnout.kube.errors import ServerFault
from turnout.scheduler_ext.nominator import NominatorSettings

HOSTS = [f"{leaf}{at}" for leaf in "ab" for at in range(4)]


def running(api, name, nodes, make=cluster.koordinator_gang, **more):
    """A gang that runs: one pod a node."""
    for pod, node in zip(make(name, len(nodes), **more), nodes, strict=True):
        api.create(pod)
        api.bind(pod["metadata"]["name"], node)


def full(*more):
    """Two leaves of four hosts: a dear gang of four on the first, two cheap ones of two on the second."""
    api = Api()
    running(api, "dear", HOSTS[:4], priority=5)
    running(api, "left", HOSTS[4:6])
    running(api, "right", HOSTS[6:])
    for pods in more:
        for pod in pods:
            api.create(pod)
    return api


def writer(api, **more):
    return Writer(api, 4, 4, preempts=True, **more)


def evicted(api):
    return [name for name, what in api.writes if what == "evicted"]


def leave(api):
    """Take away who is leaving, as its kubelet does."""
    for name in [name for name, pod in api.pods.items() if pod["metadata"].get("deletionTimestamp")]:
        api.delete(name)


@pytest.mark.asyncio
async def test_the_gate_stays_while_victims_leave_and_then_the_gang_goes():
    api = full(gang("high", 2, priority=9))
    w = writer(api)
    await w.work(3)
    first = evicted(api)
    assert len({name.split("-")[0] for name in first}) == 1
    assert len(first) == 2
    assert api.gated() == ["high-0", "high-1"]
    assert set(api.nominated().values()) == {api.pods[name]["spec"]["nodeName"] for name in first}
    leave(api)
    await w.work(1)
    assert (api.gated(), evicted(api)) == ([], first)


@pytest.mark.parametrize(
    ("size", "priority", "more", "leaves"),
    [
        pytest.param(2, 9, {}, [{"left"}, {"right"}], id="of two that cost alike one goes"),
        pytest.param(4, 9, {}, [{"left", "right"}], id="no higher priority goes while lower ones suffice"),
        pytest.param(2, 0, {}, [set()], id="of equal priority nobody goes"),
        pytest.param(2, 9, {"preemptionPolicy": "Never"}, [set()], id="who preempts never waits"),
        pytest.param(16, 9, {}, [set()], id="who would not fit into the empty cluster evicts nobody"),
        pytest.param(2, 9, {"nodeSelector": {"no": "node"}}, [set()], id="who fits no node evicts nobody"),
    ],
)
@pytest.mark.asyncio
async def test_who_leaves(size, priority, more, leaves):
    api = full(gang("high", size, priority=priority, **more))
    await writer(api).work(3)
    assert {name.split("-")[0] for name in evicted(api)} in leaves
    assert len(api.gated()) == size


@pytest.mark.asyncio
async def test_nobody_is_evicted_unless_an_admin_wishes_it():
    api = full(gang("high", 2, priority=9))
    await Writer(api, 4, 4).work(3)
    assert evicted(api) == []


def test_preempting_without_gates_is_refused():
    with pytest.raises(BadSetting, match="--preempt needs --gates"):
        NominatorSettings(preempt=True)


@pytest.mark.asyncio
async def test_a_gang_that_cannot_go_on_leaves_whole_and_elsewhere_first():
    api = Api()
    running(api, "wide", ["a0", "b0", "b1", "b2"])
    running(api, "dear", ["a1", "a2", "a3", "b3"], priority=20)
    for pod in gang("high", 1, priority=9):
        api.create(pod)
    await writer(api).work(3)
    assert sorted(evicted(api)) == [f"wide-{at}" for at in range(4)]
    (node,) = api.nominated().values()
    assert api.pods[evicted(api)[-1]]["spec"]["nodeName"] == node


@pytest.mark.asyncio
async def test_of_an_elastic_gang_only_members_above_its_min_leave():
    api = Api()
    running(api, "wide", HOSTS, make=lambda name, size: cluster.koordinator_gang(name, size, 6))
    for pod in gang("high", 2, priority=9):
        api.create(pod)
    await writer(api).work(3)
    assert len(evicted(api)) == 2


@pytest.mark.asyncio
async def test_the_freed_hosts_are_kept_from_lower_gangs_that_come_meanwhile():
    api = full(gang("high", 4, priority=9))
    w = writer(api)
    await w.work(1)
    assert len(evicted(api)) == 4
    one = evicted(api)[0]
    api.delete(one)  # the first of them is gone, and its place is free
    for pod in gang("low", 1, priority=1):
        api.create(pod)
    await w.work(3)
    assert "low-0" in api.gated()
    assert "low-0" not in api.nominated()
    leave(api)
    await w.work(3)
    assert api.gated() == ["low-0"]


@pytest.mark.asyncio
async def test_no_second_set_leaves_while_one_is_leaving_for_however_long():
    api = full(gang("high", 2, priority=9))
    w = writer(api)
    await w.work(400)
    assert len(evicted(api)) == 2


@pytest.mark.asyncio
async def test_hosts_that_nobody_leaves_are_given_back_after_ten_minutes():
    api = full(gang("high", 2, priority=9))
    w = writer(api)
    await w.work(620)
    first = evicted(api)
    assert (len(first), api.nominated()) == (2, {})
    leave(api)
    for pod in gang("low", 2, priority=1):
        api.create(pod)
    await w.work(1)
    assert api.gated() == ["low-0", "low-1"]  # whoever has the higher priority still goes first
    assert evicted(api) == first


@pytest.mark.asyncio
async def test_the_successors_of_who_leaves_do_not_take_the_room_back():
    api = full(gang("high", 4, priority=9))
    w = writer(api)
    await w.work(1)
    evictions = evicted(api)
    for name in evictions[:2]:
        api.delete(name)
    for victim in ("left", "right"):
        for at, pod in enumerate(gang(victim, 2)):
            pod["metadata"]["name"] = f"{victim}-again-{at}"
            api.create(pod)
    await w.work(2)
    successors = [f"{victim}-again-{at}" for victim in ("left", "right") for at in range(2)]
    assert not set(successors) & api.nominated().keys()
    assert set(successors) <= set(api.gated())
    leave(api)
    await w.work(2)
    assert api.gated() == successors
    assert evicted(api) == evictions


@pytest.mark.asyncio
async def test_what_a_disruption_budget_keeps_is_told_and_tried_again_later():
    api = full(gang("high", 2, priority=9))
    api.budgets = {name for name in api.pods if name.startswith(("left", "right", "dear"))}
    w = writer(api)
    await w.work(25)
    assert evicted(api) == []
    assert len(api.gated()) == 2
    assert "EvictionRefused" in {notice.reason.value for notice in w.notices}
    assert w.metric("turnout_gate_evictions_total", outcome="refused") in (2, 3)
    api.budgets = set()
    await w.work(25)
    assert len(evicted(api)) == 2


@pytest.mark.asyncio
async def test_the_owners_of_both_are_told():
    api = full(gang("high", 2, priority=9))
    w = writer(api)
    await w.work(12)
    notices = {(notice.reason.value, notice.name.split("-")[0]) for notice in w.notices}
    assert ("Preempting", "high") in notices
    assert {word for word, name in notices if name in ("left", "right")} == {"Preempted"}


@pytest.mark.asyncio
async def test_a_former_leader_evicts_nobody():
    api = full(gang("high", 2, priority=9))
    w = writer(api, leads=False)
    await w.work(3)
    assert api.writes == []


@pytest.mark.asyncio
async def test_an_api_server_that_fails_is_asked_again():
    api = full(gang("high", 2, priority=9))
    w = writer(api)
    api.faults = {"high-0": ServerFault("PATCH", "/", 503, "away")}
    await w.work(15)
    assert len(evicted(api)) == 2


@pytest.mark.parametrize("after", [False, True], ids=["before it is done", "after"])
@pytest.mark.parametrize("kill_at", range(1, 13))
@pytest.mark.asyncio
async def test_killed_at_any_write_the_next_leader_evicts_no_pod_more(kill_at, after):
    api = full(gang("high", 4, priority=9))
    api.kill_at, api.kill_after = kill_at, after
    w = writer(api)
    for _ in range(3):
        try:
            await w.work(2)
        except Killed:
            api.start_anew()
            w = writer(api)
        leave(api)
    await w.work(3)
    assert sorted(evicted(api)) == ["left-0", "left-1", "right-0", "right-1"]
    assert api.gated() == []
    assert {f"dear-{at}" for at in range(4)} <= api.pods.keys()
