"""How gates are lifted: a writer may die at any write, another goes on, and no gang is let go in parts."""

import asyncio

import pytest

from tests.kit import cluster
from tests.kit.clock import settle
from tests.scheduler_ext.gates.gated_world import GATE, Api, Killed, Writer, gang
from turnout.kube import labels
from turnout.kube.errors import ServerFault
from turnout.scheduler_ext.cluster.request_hints import POD_GROUP_WAIT_S
from turnout.scheduler_ext.model import Rules

REQUIRED = {labels.TOPOLOGY: "required"}
NAMES = [f"g-{at}" for at in range(4)]


def killed_once(kill_at, kill_after, **more):
    """Let a gang of four go with a writer that is killed at one write and started anew; the API server after it."""
    api = Api(*gang("g", 4, **more))
    api.kill_at, api.kill_after = kill_at, kill_after

    async def story():
        try:
            await Writer(api, 4, 4).work()
        except Killed:
            api.start_anew()
            await Writer(api, 4, 4).work()

    asyncio.run(story())
    return api


def test_a_gang_costs_two_patches_a_pod_and_every_nomination_comes_first():
    api = killed_once(None, False)
    assert api.gated() == []
    assert len(api.writes) == api.asked == 8
    assert api.orders(*NAMES)
    assert len(set(api.nominated().values())) == 4
    assert len({node[0] for node in api.nominated().values()}) == 1


@pytest.mark.parametrize("kill_after", [pytest.param(False, id="before"), pytest.param(True, id="after")])
@pytest.mark.parametrize("kill_at", range(1, 9))
@pytest.mark.parametrize("notes", [pytest.param({}, id="preferred"), pytest.param(REQUIRED, id="required")])
def test_a_writer_killed_at_any_write_leaves_the_same_end(notes, kill_at, kill_after):
    api = killed_once(kill_at, kill_after, notes=notes)
    assert api.gated() == []
    assert api.orders(*NAMES)
    assert sorted(name for name, what in api.writes if what == "lifted") == NAMES
    assert len(api.writes) == 8  # what the first had written is not written again
    assert len({node[0] for node in api.nominated().values()}) == 1


@pytest.mark.asyncio
async def test_two_writers_at_once_lift_each_gate_once():
    api = Api(*gang("g", 4))
    first, second = Writer(api, 4, 4), Writer(api, 4, 4)
    await asyncio.gather(first.work(2), second.work(2))
    assert api.gated() == []
    assert sorted(name for name, what in api.writes if what == "lifted") == NAMES
    assert api.orders(*NAMES)


@pytest.mark.asyncio
async def test_a_leader_that_lost_its_lease_while_it_slept_writes_nothing():
    api = Api(*gang("g", 4))
    await Writer(api, 4, 4, leads=False).work(2)
    assert api.asked == 0


@pytest.mark.asyncio
async def test_a_gang_waits_while_the_server_is_away_before_its_gates_are_lifted():
    api = Api(*gang("g", 4))
    api.kill_at = 5
    with pytest.raises(Killed):
        await Writer(api, 4, 4).work()
    api.start_anew()
    api.away, writer = True, Writer(api, 4, 4)
    await writer.work()
    assert api.gated() == NAMES
    api.away = False
    await writer.work(2)
    assert api.gated() == []
    assert len(api.writes) == 8


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([*gang("g", 4), *gang("h", 4)], id="gangs"),
        pytest.param([cluster.make_pod("p", 1, schedulingGates=GATE)], id="a lone pod"),
    ],
)
@pytest.mark.asyncio
async def test_what_fails_is_tried_again_less_and_less_often(pods):
    api = Api(*pods)
    api.away, writer = True, Writer(api, 4, 4)
    await writer.work(100)
    assert 11 * len(pods) <= api.asked <= 14 * len(pods)  # at 0, 1, 3, 7, 15 s, then each 10 s
    api.away = False
    await writer.work(11)
    assert api.gated() == []


@pytest.mark.asyncio
async def test_who_takes_over_keeps_to_what_is_written_whatever_it_had_planned():
    late, *rest = gang("g", 4)
    api = Api(*rest, *gang("h", 4))
    leader, follower = Writer(api, 4, 4), Writer(api, 4, 4)
    api.seen_by = [follower.view]
    api.create(late)  # the follower plans for g, the older one; the leader has not seen it whole, and nominates h
    while follower.view.plans.plan_some(follower.view.clock.monotonic()):
        pass
    api.seen_by = [leader.view, follower.view]
    api.kill_at = 5
    with pytest.raises(Killed):
        await leader.work()
    api.kill_at, api.seen_by = None, [follower.view]
    await follower.work(2)
    assert api.gated() == []
    assert len(api.writes) == 16
    nodes = api.nominated()
    assert {(name[0], node[0]) for name, node in nodes.items()} == {("g", "b"), ("h", "a")}


@pytest.mark.parametrize(
    "slow_after", [pytest.param(0, id="its nominations"), pytest.param(4, id="its gates"), pytest.param(6, id="half")]
)
@pytest.mark.asyncio
async def test_an_older_gang_that_comes_whole_moves_none_that_is_on_its_way(slow_after):
    late, *rest = gang("g", 4)
    api = Api(*rest, *gang("h", 4))
    api.slow_after, writer = slow_after, Writer(api, 4, 4)
    work = asyncio.create_task(writer.work(2))
    await settle(60)
    api.create(late)
    await settle(60)
    api.goes_on.set()
    await work
    assert api.gated() == []
    assert len(api.writes) == 16
    assert {(name[0], node[0]) for name, node in api.nominated().items()} == {("g", "b"), ("h", "a")}


@pytest.mark.asyncio
async def test_no_gate_is_lifted_towards_a_node_for_which_another_is_nominated():
    api = Api(*gang("low", 4))
    api.kill_at = 5
    with pytest.raises(Killed):
        await Writer(api, 4).work()
    api.start_anew()
    for pod in gang("top", 4, priority=9):
        api.create(pod)
    api.faults = {"low-1": ServerFault("PATCH", "/", 503, "not now")}
    await Writer(api, 4).work(2)
    assert api.gated() == [f"low-{at}" for at in range(4)]
    assert api.writes.index(("low-1", "cleared")) < min(api.writes.index((f"top-{at}", "lifted")) for at in range(4))


@pytest.mark.asyncio
async def test_members_are_let_go_together_once_the_last_of_the_min_exists():
    first, *rest = gang("g", 4)
    api = Api(*rest)
    writer = Writer(api, 4, 4)
    await writer.work(2)
    assert api.asked == 0
    api.create(first)
    await writer.work()
    assert api.gated() == []


@pytest.mark.asyncio
async def test_a_pod_made_anew_does_not_wait_for_members_that_have_ended():
    api = Api(*gang("g", 4))
    writer = Writer(api, 4, 4)
    await writer.work()
    for name, node in api.nominated().items():
        api.bind(name, node)
    for name in ("g-2", "g-3"):
        api.change(name, lambda pod: pod["status"].update(phase="Succeeded"))
    leaf = api.nominated()["g-1"][0]
    api.delete("g-0")
    api.create(gang("g", 4)[0])
    await writer.work()
    assert api.gated() == []
    assert api.nominated()["g-0"][0] == leaf


@pytest.mark.asyncio
async def test_the_more_important_and_then_the_older_gang_goes_first():
    pods = [*gang("old", 3), *gang("new", 3), *gang("top", 3, priority=9)]
    api = Api(*pods)
    await Writer(api, 4).work()
    assert api.gated() == [f"{name}-{at}" for name in ("new", "old") for at in range(3)]
    for at in range(3):
        api.bind(f"top-{at}", api.nominated()[f"top-{at}"])
        api.delete(f"top-{at}")
    await Writer(api, 4).work()
    assert api.gated() == [f"new-{at}" for at in range(3)]


@pytest.mark.asyncio
async def test_room_that_is_given_back_is_used_within_a_second():
    api = Api(cluster.make_pod("stranger", 8), *gang("g", 4))
    api.bind("stranger", "a0")
    writer = Writer(api, 4)
    await writer.work(1)
    assert api.gated() == NAMES
    api.delete("stranger")
    await writer.work(0.2)
    assert api.gated() == []


@pytest.mark.asyncio
async def test_a_gang_that_stays_keeps_no_room_from_the_next():
    api = Api(*gang("g", 5), *gang("h", 4))
    await Writer(api, 4).work()
    assert api.gated() == [f"g-{at}" for at in range(5)]


QUEUE = {labels.KUEUE_QUEUE: "train"}


@pytest.mark.parametrize(
    ("queues", "gated"),
    [
        pytest.param((), ["large"], id="whoever fits goes past one that does not"),
        pytest.param(("default/train",), ["large", "small"], id="nobody behind in its queue uses its room"),
        pytest.param(("elsewhere/train",), ["large"], id="another queue is strict"),
    ],
)
@pytest.mark.asyncio
async def test_room_is_kept_for_the_oldest_gang_of_a_strict_queue(queues, gated):
    api = Api(cluster.make_pod("stranger", 8), *gang("large", 4, marks=QUEUE), *gang("small", 2, marks=QUEUE))
    api.bind("stranger", "a0")
    writer = Writer(api, 4, rules=Rules(strict_queues=frozenset(queues)))
    await writer.work(12)
    assert sorted({name.partition("-")[0] for name in api.gated()}) == gated
    if "small" in gated:
        (detail,) = (notice.detail for notice in writer.notices if notice.name == "small-0")
        assert "room at psw0/asw0 is kept for default/large, the oldest that waits in this queue" in detail
        api.delete("stranger")
        await writer.work(1)
        assert api.gated() == ["small-0", "small-1"]


@pytest.mark.parametrize(
    ("pods", "word", "text"),
    [
        pytest.param(gang("g", 4)[:3], "GangIncomplete", "3 of 4 members exist", id="members that never come"),
        pytest.param(gang("g", 5), "NoRoom", "", id="a gang that does not fit"),
        pytest.param(
            gang("g", 2, make=cluster.volcano_gang),
            "GangUnknown",
            "its PodGroup g does not exist yet",
            id="no PodGroup",
        ),
    ],
)
@pytest.mark.asyncio
async def test_an_owner_is_told_once_why_the_gang_waits(pods, word, text):
    api = Api(*pods)
    writer = Writer(api, 4)
    await writer.work(9)
    assert writer.notices == []
    await writer.work(30)
    (notice,) = writer.notices
    assert notice.reason.value == word
    assert text in notice.detail
    assert api.gated() == [pod["metadata"]["name"] for pod in pods]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_owner_is_told_again_before_the_api_server_has_forgotten_it():
    writer = Writer(Api(*gang("g", 5)), 4)
    for _ in range(8):
        await writer.work(450)
    assert [notice.reason.value for notice in writer.notices] == ["NoRoom"] * 2


@pytest.mark.asyncio
async def test_a_gang_of_a_podgroup_goes_once_its_podgroup_says_how_many():
    api = Api(*gang("g", 2, make=cluster.volcano_gang))
    await Writer(api, 4, groups=[("g", 2)]).work()
    assert api.gated() == []


@pytest.mark.asyncio
async def test_a_gang_that_states_its_min_waits_for_its_podgroup_too():
    api = Api(*gang("g", 2, make=cluster.volcano_gang, notes={labels.MIN_WORKERS: "2"}))
    writer = Writer(api, 4)
    writer.view.watches.serves = True
    await writer.work(POD_GROUP_WAIT_S - 1)
    assert api.gated() == ["g-0", "g-1"]
    assert api.writes == []
    await writer.work(2)
    assert api.gated() == []


@pytest.mark.asyncio
async def test_a_lone_pods_gate_is_lifted_at_once_and_its_owner_told():
    api = Api(cluster.make_pod("p", 1, schedulingGates=[*GATE, {"name": "a/x"}]), cluster.make_pod("q", 0))
    writer = Writer(api, 4)
    await writer.work()
    assert api.writes == [("p", "lifted")]
    assert api.pods["p"]["spec"]["schedulingGates"] == [{"name": "a/x"}]
    (notice,) = writer.notices
    assert (notice.reason.value, notice.name) == ("GateWithoutGang", "p")


@pytest.mark.asyncio
@pytest.mark.parametrize("pods", [
    pytest.param(gang("g", 4), id="during its nomination"),
    pytest.param([cluster.make_pod("g-0", 1, schedulingGates=GATE)], id="during its lift"),
])  # fmt: skip
async def test_a_pod_deleted_before_its_answer_is_read_is_forgotten(pods):
    api = Api(*pods, *gang("h", 2))
    api.delete_in_flight, writer = {"g-0"}, Writer(api, 4, 4)
    await writer.work(3)
    assert "g-0" not in api.pods
    assert api.gated() == [name for name in NAMES[1:] if name in api.pods]
    assert writer.metric("turnout_gated_pods") == len(api.gated())


@pytest.mark.asyncio
async def test_gates_of_others_are_not_ours_to_lift():
    api = Api(*gang("g", 2, gates=[{"name": "a/x"}]))
    await Writer(api, 4).work(2)
    assert api.asked == 0


@pytest.mark.asyncio
async def test_without_a_map_a_gang_still_goes_whole_or_not_at_all():
    api = Api(*gang("g", 4), *gang("h", 4), *gang("r", 2, notes=REQUIRED))
    writer = Writer(api, 6, mapped=False)
    await writer.work(20)
    assert len(api.gated()) == 6
    assert {notice.reason.value for notice in writer.notices} == {"NoRoom", "NoMap"}


@pytest.mark.asyncio
async def test_what_came_of_the_gates_is_counted():
    api = Api(*gang("g", 2))
    writer = Writer(api, 4)
    assert writer.metric("turnout_gated_pods") == 2
    await writer.work()
    assert writer.metric("turnout_gates_lifted_total", reason="Placed") == 2
    assert writer.metric("turnout_gate_wait_seconds_count") == 2
    nodes = api.nominated()
    api.bind("g-0", nodes["g-0"])
    api.bind("g-1", "a3")
    assert writer.metric("turnout_gated_pods") == 0
    assert writer.metric("turnout_gate_bindings_total", as_nominated="true") == 1
    assert writer.metric("turnout_gate_bindings_total", as_nominated="false") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("size", "away", "reason"), [
    pytest.param(9, False, "NoRoom", id="a gang without room"),
    pytest.param(4, True, "planned", id="a gang with a plan that cannot be written"),
])  # fmt: skip
async def test_the_wait_of_a_gated_gang_is_shown_while_leading(size, away, reason):
    api = Api(*gang("g", size))
    writer = Writer(api, 4, 4)
    api.away = away
    assert waits_shown(writer) == {}
    work = asyncio.create_task(writer.writer.run())
    await settle(60)
    ((name, shown), age_s) = waits_shown(writer).popitem()
    assert (name, shown) == ("g", reason)
    assert age_s == writer.clock.wall() - 1_767_225_600 - 41  # since the first pod
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert waits_shown(writer) == {}


@pytest.mark.asyncio
async def test_a_pod_with_a_gate_of_others_counts_as_no_gang_with_a_plan():
    first, second = gang("g", 2, minimum=1)
    second["spec"]["schedulingGates"] = [*GATE, {"name": "a/x"}]
    writer = Writer(Api(first, second), 4)
    work = asyncio.create_task(writer.writer.run())
    await settle(60)
    assert waits_shown(writer).keys() == {("g", "other_gate")}
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def waits_shown(writer):
    """Return the ages of the oldest gated pods by gang and reason."""
    families = (family for family in writer.registry.collect() if family.name == "turnout_gate_oldest_seconds")
    return {
        (sample.labels["gang_name"], sample.labels["reason"]): sample.value
        for family in families
        for sample in family.samples
    }
