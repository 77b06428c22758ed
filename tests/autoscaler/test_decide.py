"""The decisions of the autoscaler, as sentences. Its laws are in test_laws.py."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import NODES, Reason, TerminatingPod
from turnout.jobs.model import JobLifecycle, Pause, ResizeBudget, Spread
from turnout.jobs.queues.model import QueueShare


def plan(at, policy=POLICY, now_s=NOW_S):
    return {step.key.name: step for step in decide(at, policy, now_s)}


def words(at, policy=POLICY):
    return {name: step.reason for name, step in plan(at, policy).items()}


def sizes(at, policy=POLICY):
    return {name: step.target for name, step in plan(at, policy).items()}


@pytest.mark.contract("CS-13", "VE-11", "VE-30")
def test_one_idle_gpu_is_enough_to_grow_a_worker_of_one():  # VE-11
    assert sizes(world([2], state_of(job("a"), [0]))) == {"a": 2}


@pytest.mark.contract("VE-37")
def test_it_grows_as_far_as_there_is_room_in_one_change():  # VE-37
    assert sizes(world([4, 4], state_of(job("a", maximum=6), [0]))) == {"a": 6}
    assert sizes(world([3], state_of(job("a", maximum=6), [0]))) == {"a": 3}


STEEP, FLAT = ((1, 1.0), (4, 3.9)), ((1, 1.0), (4, 2.0))


@pytest.mark.parametrize(
    ("free", "jobs", "grown"),
    [
        pytest.param(3, {"a": {}, "bb": {}}, {"a": 4, "bb": 1}, id="of two alike the first has it all"),
        pytest.param(4, {"a": {}, "bb": {}}, {"a": 4, "bb": 2}, id="and the next what is left"),
        pytest.param(
            3, {"a": {"curve": FLAT}, "bb": {"curve": STEEP}}, {"a": 1, "bb": 4}, id="who gains most has it all"
        ),
        pytest.param(3, {"a": {"maximum": 2}, "bb": {}}, {"a": 2, "bb": 3}, id="all that it can use, no more"),
        pytest.param(
            3, {"a": {"gpus": 4}, "bb": {}}, {"a": 1, "bb": 4}, id="none of it where not one of its workers fits"
        ),
    ],
)
def test_room_goes_whole_to_who_gains_most_and_then_to_the_next(free, jobs, grown):
    observed_job = [state_of(job(name, **more), [0]) for name, more in jobs.items()]
    gpus_total = sum(more.get("gpus", 1) for more in jobs.values())
    assert sizes(world([gpus_total + free], *observed_job)) == grown


NONE = {NODES: {GPU: 0}}


def aged(state, since_s):
    """Copy a job whose workers have run since then."""
    return replace(state, workers=tuple(replace(each, since_s=since_s) for each in state.workers))


@pytest.mark.parametrize(
    ("state", "settled", "reason"),
    [
        pytest.param(job("a"), {NODES: {GPU: 3}}, (4, Reason.IDLE_ROOM), id="all of it has been idle"),
        pytest.param(job("a"), {NODES: {GPU: 2}}, (3, Reason.IDLE_ROOM), id="only what has been idle"),
        pytest.param(job("a"), NONE, (1, Reason.ROOM_SETTLES), id="nothing has been idle for long enough"),
        pytest.param(
            job("a", queue="low"), {"top": {GPU: 1}, NODES: {GPU: 3}}, (2, Reason.IDLE_ROOM), id="in what is above it"
        ),
        pytest.param(
            job("a", queue="other"), {"top": {GPU: 0}}, (4, Reason.IDLE_ROOM), id="elsewhere is nothing to it"
        ),
        pytest.param(
            job("a", unit=3, minimum=3, maximum=6), {NODES: {GPU: 2}}, (3, Reason.ROOM_SETTLES), id="no whole unit"
        ),
        pytest.param(job("a"), None, (4, Reason.IDLE_ROOM), id="nobody says what has been idle"),
    ],
)
def test_who_restarts_grows_only_into_room_that_has_been_idle(state, settled, reason):
    at = world(
        [state.bounds.minimum + 3], aged(state_of(state, [0] * state.bounds.minimum), NOW_S - 1000), idle_room=settled
    )
    queues = {"low": QueueShare(parent="top"), "top": QueueShare({GPU: 9}), "other": QueueShare()}
    step = plan(replace(at, queues=queues))["a"]
    assert (step.target, step.reason, step.at_start) == (*reason, False)


@pytest.mark.parametrize(
    ("state", "age_s", "at_start"),
    [
        pytest.param(job("a"), 0, True, id="just bound"),
        pytest.param(job("a"), 10, True, id="still starting"),
        pytest.param(job("a"), 11, False, id="running"),
        pytest.param(job("a"), -5, True, id="by a clock that is ahead of ours"),
        pytest.param(job("a"), -50, False, id="by a clock that is wrong"),
        pytest.param(job("a", resized_s=NOW_S - 700), 0, False, id="resized before, whatever its pods say"),
    ],
)
def test_a_job_that_starts_is_sized_at_once_in_any_room(state, age_s, at_start):
    at = world([4], aged(state_of(state, [0]), NOW_S - age_s), idle_room=NONE)
    step = plan(at)["a"]
    assert (step.target, step.at_start) == ((4, True) if at_start else (1, False))


def test_a_job_that_starts_comes_before_those_that_restart():
    old, new = aged(state_of(job("a"), [0]), NOW_S - 1000), aged(state_of(job("bb", curve=FLAT), [0]), NOW_S)
    assert sizes(world([5], old, new, idle_room={NODES: {GPU: 3}})) == {"a": 1, "bb": 4}


def test_a_job_that_was_sized_as_it_started_waits_for_no_cooldown():
    one_job = job("a", replicas=2, resize_budget=ResizeBudget(0.0, NOW_S - 30, at_start=True))
    assert sizes(world([4], state_of(one_job, [0, 0]))) == {"a": 4}
    assert words(world([4], state_of(job("a", replicas=2, resized_s=NOW_S - 30), [0, 0]))) == {"a": Reason.COOLDOWN}


def test_only_whole_workers_count():
    """Eight free GPUs on eight nodes hold no worker of eight."""
    at = world([8] + [1] * 8, state_of(job("a", gpus=8), [0]))
    assert words(at) == {"a": Reason.NO_FREE_ROOM}


@pytest.mark.contract("CS-13", "VE-11", "VE-30")
def test_every_min_comes_before_any_elastic_worker():  # VE-30
    at = world([4], state_of(job("a"), [0]), state_of(job("bb", minimum=3)))
    assert words(at) == {"a": Reason.OTHERS_WAIT, "bb": Reason.SCHEDULERS_TURN}


@pytest.mark.contract("CS-14", "VE-10", "VE-31")
def test_a_new_job_makes_just_enough_leave():  # VE-10, VE-31
    at = world([8], state_of(job("a", minimum=2, maximum=8, replicas=8), [0] * 8), state_of(job("bb", minimum=3)))
    plan_of_all = plan(at)
    assert (plan_of_all["a"].target, plan_of_all["a"].reason, plan_of_all["a"].beneficiary.name) == (
        5,
        Reason.MAKES_ROOM,
        "bb",
    )
    assert plan_of_all["bb"].reason is Reason.WAITS_FOR_ROOM


@pytest.mark.contract("VE-35")
def test_nobody_is_disturbed_for_one_that_would_not_fit_even_then():  # VE-35
    at = world([8], state_of(job("a", minimum=6, maximum=8, replicas=8), [0] * 8), state_of(job("bb", minimum=3)))
    assert (sizes(at)["a"], words(at)["bb"]) == (8, Reason.NEEDS_MORE)


def test_victims_on_many_nodes_make_no_room_for_a_whole_one():
    rows = list(range(8)) * 2
    at = world([2] * 8, state_of(job("a", minimum=8, maximum=16, replicas=16), rows), state_of(job("bb", gpus=8)))
    assert sizes(at)["a"] == 16


@pytest.mark.contract("CS-14", "VE-10", "VE-31")
def test_the_newest_gives_first_and_what_is_not_needed_stays():
    old = state_of(job("a", replicas=4, created="2026-01-01T00:00:00Z"), [0] * 4)
    new = state_of(job("b", replicas=4, created="2026-01-02T00:00:00Z"), [0] * 4)
    assert sizes(world([8], old, new, state_of(job("waits", minimum=2)))) == {"a": 4, "b": 2, "waits": 2}


TWICE = {"curve": ((1, 1.0), (2, 2.0), (4, 4.0)), "resized_s": NOW_S - 100}  # 40 s of 3 more a second since it grew


@pytest.mark.parametrize(
    ("old", "new", "giver"),
    [
        pytest.param({}, {}, "new", id="nobody has banked anything: the newest"),
        pytest.param({**TWICE, "gained_s": -60.0}, {}, "old", id="who has just banked a restart"),
        pytest.param({**TWICE, "gained_s": -61.0}, {}, "new", id="not who is a second short of one"),
        pytest.param({**TWICE, "gained_s": -60.0}, {**TWICE, "gained_s": 0.0}, "new", id="of two rich ones the newest"),
        pytest.param({**TWICE, "priority": 2}, {"priority": 1}, "new", id="the least important before the rich"),
        pytest.param(
            {**TWICE, "gained_s": -60.0, "priority": 1}, {"priority": 1}, "old", id="of two as important the rich"
        ),
        pytest.param(
            {"resized_s": NOW_S - 100_000, "gained_s": -60.0, "curve": ((1, 1.0), (4, 1.001))},
            {},
            "new",
            id="time alone makes nobody rich",
        ),
    ],
)
def test_who_has_banked_a_restart_gives_first(old, new, giver):
    jobs = [
        state_of(job(name, replicas=4, created=f"2026-01-0{day}T00:00:00Z", **more), [0] * 4)
        for name, day, more in (("old", 1, old), ("new", 2, new))
    ]
    new_sizes = sizes(world([8], *jobs, state_of(job("waits", minimum=2))), replace(POLICY, restart_budget_share=0.0))
    assert new_sizes == {"old": 4, "new": 4, "waits": 2} | {giver: 2}


def test_a_unit_that_does_not_help_stays():
    """The newest job stands on another node than the one that a worker of four needs."""
    first_job = state_of(job("a", replicas=4, created="2026-01-01T00:00:00Z"), [0] * 4)
    second_job = state_of(job("b", replicas=2, created="2026-01-02T00:00:00Z", maximum=2), [1, 1])
    new_sizes = sizes(world([5, 3], first_job, second_job, state_of(job("waits", gpus=4))))
    assert new_sizes == {"a": 1, "b": 2, "waits": 1}


def test_the_least_important_gives_first():
    low, high = (
        state_of(job("low", replicas=4, priority=1), [0] * 4),
        state_of(job("high", replicas=4, priority=50), [0] * 4),
    )
    assert sizes(world([8], low, high, state_of(job("waits", minimum=3)))) == {"low": 1, "high": 4, "waits": 3}


@pytest.mark.contract("VE-36")
def test_a_queue_gives_back_what_it_has_borrowed_and_nothing_else():  # VE-36
    mine = state_of(job("mine", minimum=2, queue="own"))
    theirs = state_of(job("theirs", replicas=4, queue="other"), [0] * 4)
    lent = {"own": {"deserved": 2}, "other": {"deserved": 2}}
    assert sizes(world([4], theirs, mine, queues=lent))["theirs"] == 2
    own = {"own": {"deserved": 2}, "other": {"deserved": 4}}
    assert sizes(world([4], theirs, mine, queues=own))["theirs"] == 4


def test_a_full_queue_grows_no_more_whatever_the_nodes_have():
    at = world([8], state_of(job("a", maximum=8), [0]), queues={"q": {"limit": 3}})
    assert sizes(at) == {"a": 3}
    assert words(world([8], state_of(job("a", maximum=8, replicas=3), [0] * 3), queues={"q": {"limit": 3}})) == {
        "a": Reason.NO_FREE_ROOM
    }


def test_workers_that_leave_are_still_in_the_way_and_nobody_leaves_twice():
    for leaving in (True, False):  # the controller has told them to go, or has not got round to it yet
        going = state_of(job("a", replicas=2), [0, 0, 0, 0])
        going = replace(going, workers=tuple(replace(w, leaving=leaving and w.index > 1) for w in going.workers))
        at = world([4], going, state_of(job("bb", minimum=2)))
        assert (words(at)["bb"], sizes(at)["a"]) == (Reason.WAITS_FOR_ROOM, 2)


def test_nobody_leaves_while_the_pods_of_a_deleted_job_are_terminating():
    lent = state_of(job("a", replicas=4), [0] * 4)
    at = world([4, 0], lent, state_of(job("bb", minimum=2)))
    assert sizes(at)["a"] == 2
    going = TerminatingPod("q", shape(1), 1)
    at = replace(at, terminating_pods=(going, going))
    assert (words(at)["bb"], sizes(at)["a"]) == (Reason.WAITS_FOR_ROOM, 4)


def test_a_controller_that_does_not_obey_is_not_waited_for_for_ever():
    """Its workers stay where they are: then somebody else makes room."""
    deaf = state_of(job("a", replicas=2, resized_s=NOW_S - 10), [0, 0, 0, 0])
    other = state_of(job("c", replicas=4), [0, 0, 0, 0])
    at = world([8], deaf, other, state_of(job("bb", minimum=2)))
    assert sizes(at)["c"] == 4
    late = replace(deaf, job=replace(deaf.job, resize_budget=ResizeBudget(-5000.0, NOW_S - 1000)))
    assert sizes(world([8], late, other, state_of(job("bb", minimum=2))))["c"] == 2


def test_what_a_queue_says_that_cannot_be_read_stops_its_jobs():
    at = world([8], state_of(job("a"), [0]), state_of(job("b", queue="r"), [0]), queues={"q": {}, "r": {}})
    broken = replace(at, queues={**at.queues, "q": replace(at.queues["q"], faults=("spec.capability: what?",))})
    assert words(broken) == {"a": Reason.STALE, "b": Reason.IDLE_ROOM}


def test_a_gang_that_must_stay_under_a_switch_gets_room_there():
    """Two free on each of two leaves hold no gang of three under one."""
    gang_under_switch = state_of(job("bb", minimum=3, maximum=3, spread=Spread(tier=1)))
    lent = state_of(job("a", minimum=1, maximum=5, replicas=5), [0, 0, 1, 2, 2])
    leaves = [0, 0, 1, 1]
    assert words(world([3, 3, 3, 3], lent, gang_under_switch, leaves=leaves))["bb"] is Reason.SCHEDULERS_TURN
    scattered = world([4, 1, 3, 1], lent, gang_under_switch, leaves=leaves)
    assert (words(scattered)["bb"], sizes(scattered)["a"]) == (Reason.WAITS_FOR_ROOM, 4)
    assert (
        words(world([4, 4, 4, 4], lent, gang_under_switch))["bb"] is Reason.NEEDS_MORE
    )  # no map tells where it would be near


def test_room_that_is_on_its_way_to_a_waiter_is_not_grown_into():
    going = state_of(job("a", replicas=2, maximum=8), [0, 0, 0, 0])
    grows = state_of(job("c"), [0])
    new_sizes = sizes(world([7], going, grows, state_of(job("bb", minimum=4))))
    assert new_sizes == {"a": 2, "bb": 4, "c": 1}


@pytest.mark.contract("CS-16", "VE-34")
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param(state_of(job("a", refused="HPA"), [0]), Reason.REFUSED, id="its kind cannot be resized"),
        pytest.param(state_of(job("a", maximum=1), [0]), Reason.RIGID, id="it has one size"),
        pytest.param(state_of(job("a", pause=Pause.GROW), [0]), Reason.PAUSED, id="its owner forbids it"),
        pytest.param(state_of(job("a", wanted_workers=1), [0]), Reason.AT_MAX, id="a person has set it by hand"),
        pytest.param(state_of(job("a", replicas=2), [0]), Reason.NOT_READY, id="its last change is not done"),
        pytest.param(state_of(job("a", resized_s=NOW_S - 599), [0]), Reason.COOLDOWN, id="it has just been changed"),
        pytest.param(
            state_of(job("a", cooldown_s=9e9, resized_s=1), [0]), Reason.COOLDOWN, id="it asks for a long pause"
        ),
        pytest.param(state_of(job("a", lifecycle=JobLifecycle.SUSPENDED), []), Reason.SUSPENDED, id="it is suspended"),
    ],
)
def test_why_a_job_does_not_grow(state, reason):
    at = world([8], state)
    assert words(at) == {"a": reason}
    assert not plan(at)["a"].changes


def test_growth_stops_where_it_gains_too_little():
    flat = ((1, 1.0), (2, 1.8), (4, 1.81))
    assert sizes(world([8], state_of(job("a", maximum=8, curve=flat), [0]))) == {"a": 2}


def test_headroom_is_kept():
    policy = replace(POLICY, headroom={GPU: 2})
    assert sizes(world([4], state_of(job("a"), [0])), policy) == {"a": 2}
    assert words(world([2], state_of(job("a"), [0])), policy) == {"a": Reason.HEADROOM_KEPT}


def test_sizes_change_in_units():
    assert sizes(world([8], state_of(job("a", minimum=2, maximum=8, unit=2), [0, 0]))) == {"a": 8}
    assert sizes(world([7], state_of(job("a", minimum=2, maximum=8, unit=2), [0, 0]))) == {"a": 6}
    at = world([8], state_of(job("a", minimum=2, maximum=8, unit=2, replicas=8), [0] * 8), state_of(job("bb")))
    assert sizes(at)["a"] == 6


def test_workers_above_the_min_that_find_no_node_are_given_up():
    observed_job = state_of(job("a", replicas=3), [0, None, None])
    late = replace(observed_job, workers=tuple(replace(w, since_s=NOW_S - 60) for w in observed_job.workers))
    assert plan(world([1], late))["a"].reason is Reason.ROOM_TAKEN
    assert sizes(world([1], late)) == {"a": 1}
    assert sizes(world([1], observed_job)) == {"a": 3}


@pytest.mark.parametrize("more", [{"age_s": 151.0}, {"complete": False}])
def test_an_old_or_partial_observation_changes_nothing(more):
    at = world([8], state_of(job("a"), [0]), state_of(job("bb", minimum=3)), **more)
    assert words(at) == {"a": Reason.STALE, "bb": Reason.STALE}


def test_a_closed_queue_neither_grows_nor_starts():
    at = world([8], state_of(job("a"), [0]), state_of(job("bb")), queues={"q": {"open": False}})
    assert words(at) == {"a": Reason.QUEUE_CLOSED, "bb": Reason.QUEUE_CLOSED}


def test_in_a_strict_queue_nobody_makes_room_for_one_behind_in_line():
    """4 GPUs: to make room for the last would be in vain, as it may not start before the one that is too large."""
    lent, rigid = state_of(job("a", maximum=2, replicas=2), [0, 0]), state_of(job("b", minimum=2, maximum=2), [0, 0])
    head, behind = state_of(job("cc", minimum=3, maximum=3)), state_of(job("ddd", maximum=1))
    at = world([4], lent, rigid, head, behind)
    assert (sizes(at)["a"], words(at)["ddd"]) == (1, Reason.WAITS_FOR_ROOM)
    strict = replace(at, queues={"q": replace(at.queues["q"], strict=True)})
    assert (sizes(strict)["a"], words(strict)["ddd"]) == (2, Reason.OTHERS_WAIT)
    assert plan(strict)["ddd"].detail == "its queue is strict, and Job/ns/cc comes first"


def test_a_min_above_the_queues_limit_never_starts():
    at = world([8], state_of(job("a", minimum=5, maximum=5)), queues={"q": {"limit": 4}})
    assert words(at) == {"a": Reason.OVER_QUOTA}


@pytest.mark.contract("VE-37")
def test_one_job_gives_to_several_in_one_change():
    at = world(
        [8],
        state_of(job("a", maximum=8, replicas=8), [0] * 8),
        *(state_of(job(name, maximum=1)) for name in ("b", "c", "dd")),
    )
    plan_of_all = plan(at)
    assert (plan_of_all["a"].target, plan_of_all["a"].detail) == (5, "3 workers leave for Job/ns/b and others")
