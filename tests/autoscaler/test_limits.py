"""Each limit of the autoscaler: the last value that passes, the first that does not; and how numbers are told."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide, decide_safely
from turnout.autoscaler.model import NODES, UNKNOWN_NODE, AdminOverride, Reason, Step, TerminatingPod
from turnout.autoscaler.scaling.free_room import lacking_pods
from turnout.autoscaler.scaling.resize_cost import after_change_s, balance_s, conditions, is_overruled, pays_off
from turnout.jobs.model import JobKey, Pause, ResizeBudget, Sizes, Spread
from turnout.jobs.queues.model import QueueShare
from turnout.kube import labels
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import rfc3339


def plan(at, policy=POLICY):
    return {step.key.name: step for step in decide(at, policy, NOW_S)}


def why(at, policy=POLICY):
    return {name: step.reason for name, step in plan(at, policy).items()}


@pytest.mark.parametrize(
    ("more", "reason", "detail"),
    [
        pytest.param({"age_s": 150.0}, Reason.IDLE_ROOM, None, id="a list as old as it may be"),
        pytest.param({"age_s": 150.5}, Reason.STALE, "the oldest list is 150 s old", id="an older one"),
        pytest.param({"unready": 0.45}, Reason.IDLE_ROOM, None, id="as many nodes lost as may be"),
        pytest.param({"unready": 0.46}, Reason.NODES_UNREADY, "46% of the nodes are not ready", id="more"),
        pytest.param({"complete": False}, Reason.STALE, "a list failed", id="a list that failed"),
        pytest.param(
            {"admin_override": AdminOverride.PAUSE},
            Reason.ALL_PAUSED,
            "an admin has stopped all changes",
            id="an admin's word",
        ),
    ],
)
def test_what_is_seen_is_acted_on_up_to_a_limit(more, reason, detail):
    step = plan(world([2], state_of(job("a"), [0]), **more))["a"]
    assert step.reason is reason
    assert detail is None or step.detail == detail


@pytest.mark.parametrize(
    ("state", "expected_sizes"),
    [
        pytest.param(job("a", replicas=3), (1, Reason.RELEASED), id="lent workers go"),
        pytest.param(job("a", replicas=1), (1, Reason.ALL_PAUSED), id="a job at its min stays"),
        pytest.param(
            job("a", replicas=3, refused="HPA"), (3, Reason.ALL_PAUSED), id="one that cannot be resized stays"
        ),
        pytest.param(job("a", replicas=3, pause=Pause.BOTH), (1, Reason.RELEASED), id="a pause is about lending"),
    ],
)
def test_an_admin_takes_back_what_is_lent(state, expected_sizes):
    step = plan(world([4], state_of(state, [0] * state.replicas), admin_override=AdminOverride.RELEASE))["a"]
    assert (step.target, step.reason) == expected_sizes


@pytest.mark.parametrize(
    ("since_s", "size"),
    [
        pytest.param(30, (3, Reason.NOT_READY), id="for as long as it may be"),
        pytest.param(31, (2, Reason.ROOM_TAKEN), id="for longer"),
    ],
)
def test_a_worker_may_be_without_a_node_for_a_while(since_s, size):
    observed_job = state_of(job("a", replicas=3), [0, 0, None])
    observed_job = replace(
        observed_job, workers=tuple(replace(each, since_s=NOW_S - since_s) for each in observed_job.workers)
    )
    step = plan(world([2], observed_job))["a"]
    assert (step.target, step.reason) == size


def test_how_many_are_without_a_node_is_told():
    observed_job = state_of(job("a", maximum=8, unit=2, minimum=2, replicas=8), [0, 0, 0, None, None, None, None, None])
    late = [replace(each, since_s=NOW_S - (31 if each.index > 5 else 5)) for each in observed_job.workers]
    step = plan(world([3], replace(observed_job, workers=tuple(late))))["a"]
    assert (step.target, step.detail) == (2, "2 workers without a node for more than 30 s")


@pytest.mark.parametrize(
    ("since_s", "waited_for"),
    [pytest.param(300, True, id="as long as a promise counts"), pytest.param(301, False, id="longer")],
)
def test_a_controller_is_believed_for_a_while(since_s, waited_for):
    deaf = state_of(job("a", replicas=2, resized_s=NOW_S - since_s), [0, 0, 0, 0])
    lent = state_of(job("c", replicas=4), [0, 0, 0, 0])
    assert (plan(world([8], deaf, lent, state_of(job("bb", minimum=2))))["c"].target == 4) is waited_for


@pytest.mark.parametrize(
    ("since_s", "reason"),
    [
        pytest.param(599.0, (Reason.COOLDOWN, "1 s are left of 600"), id="a second short of it"),
        pytest.param(600.0, (Reason.IDLE_ROOM, "room in queue q"), id="when it is over"),
    ],
)
def test_a_pause_between_two_changes_lasts_so_long(since_s, reason):
    step = plan(world([2], state_of(job("a", resized_s=NOW_S - since_s), [0])))["a"]
    assert (step.reason, step.detail) == reason


@pytest.mark.parametrize(
    ("gained_s", "text"),
    [
        pytest.param(0.0, (Reason.IDLE_ROOM, "room in queue q"), id="that owes nothing grows"),
        pytest.param(
            -2.0,
            (Reason.BUDGET_SPENT, "restarts have cost it 2 s more than lending has won it"),
            id="that owes a little does not",
        ),
    ],
)
def test_a_job(gained_s, text):
    step = plan(world([2], state_of(job("a", resized_s=NOW_S - 700, gained_s=gained_s), [0])))["a"]
    assert (step.reason, step.detail) == text


def test_a_step_of_growth_may_gain_as_little_as_the_policy_says():
    halves = ((1, 1.0), (2, 1.5), (4, 1.5))
    at = world([4], state_of(job("a", curve=halves), [0]))
    assert plan(at, replace(POLICY, min_gain=0.5))["a"].target == 2
    assert why(at, replace(POLICY, min_gain=0.51)) == {"a": Reason.MARGINAL_GAIN}
    assert plan(at, replace(POLICY, min_gain=0.51))["a"].detail == "50.0% faster by the next worker"


@pytest.mark.parametrize(
    ("payback_s", "grows"),
    [pytest.param(120, True, id="just in time"), pytest.param(119, False, id="a second late")],
)
def test_growth_pays_when_it_wins_two_restarts_back_in_time(payback_s, grows):
    doubled = job("a", curve=((1, 1.0), (2, 2.0)), maximum=2)
    policy = replace(POLICY, payback_s=payback_s)
    assert pays_off(doubled, 2, policy) is grows
    step = plan(world([2], state_of(doubled, [0])), replace(policy, start_s=0.0))["a"]
    assert (step.target == 2) is grows
    assert grows or step.detail == "100.0% faster by the next worker: no restart is worth it"


def test_what_starts_has_one_restart_to_win_back_and_is_told_so():
    doubled = replace(state_of(job("a", curve=((1, 1.0), (2, 2.0)), maximum=2), [0]))
    step = plan(world([2], doubled), replace(POLICY, payback_s=60))["a"]
    assert (step.target, step.at_start, step.detail) == (2, True, "room in queue q as it starts")
    assert plan(world([2], doubled), replace(POLICY, payback_s=59))["a"].target == 1


def test_a_job_earns_nothing_while_it_restarts_and_the_budget_all_the_time():
    doubled = job("a", replicas=2, curve=((1, 1.0), (2, 2.0)), resized_s=NOW_S - 30)
    assert balance_s(doubled, replace(POLICY, restart_s=60), NOW_S) == 0.0
    assert balance_s(doubled, replace(POLICY, restart_s=60, restart_budget_share=0.5), NOW_S) == 15.0
    for budget in (0.0, 0.5):
        policy = replace(POLICY, restart_budget_share=budget)
        assert balance_s(doubled, policy, NOW_S - 40) == 0.0  # by a clock that went back
    assert after_change_s(doubled, replace(POLICY, restart_s=7), NOW_S) == 16.0


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        pytest.param({"a": 2}, ("1 worker leaves for Job/ns/zz", "1 job makes room"), id="one of one"),
        pytest.param({"a": 2, "b": 2}, ("1 worker leaves for Job/ns/zz", "2 jobs make room"), id="one of each of two"),
        pytest.param({"a": 3}, ("2 workers leave for Job/ns/zz", "1 job makes room"), id="two of one"),
    ],
)
def test_who_leaves_is_told_in_words(jobs, text):
    lent = [state_of(job(name, replicas=size), [0] * size) for name, size in jobs.items()]
    short = sum(jobs.values()) - len(jobs)
    steps = plan(world([sum(jobs.values())], *lent, state_of(job("zz", minimum=short))))
    assert ({steps[name].detail for name in jobs}, steps["zz"].detail) == ({text[0]}, text[1])


def test_what_a_min_asks_for_is_told():
    at = world([1], state_of(job("a", minimum=2, gpus=4)), leaves=[0])
    assert plan(at)["a"].detail == f"its min asks for 8 {GPU}"
    gang_under_switch = state_of(job("a", minimum=2, gpus=4, spread=Spread(tier=1)))
    assert (
        plan(world([1], gang_under_switch, leaves=[0]))["a"].detail
        == f"its min asks for 8 {GPU} under one switch of tier 1"
    )


def test_what_a_min_asks_for_is_told_in_a_persons_units():
    asks = PodShape(requests=(("cpu", 1500), ("memory", 1 << 31), (GPU, 4), ("pods", 1)))
    at = world([1], state_of(replace(job("a", minimum=2), shape=asks)), leaves=[0])
    assert plan(at)["a"].detail == f"its min asks for 3 cpu, 4Gi memory, 8 {GPU}"


@pytest.mark.parametrize(
    ("tier", "word"),
    [
        pytest.param(1, Reason.NEEDS_MORE, id="under one leaf there is no room"),
        pytest.param(2, Reason.SCHEDULERS_TURN, id="under a spine there is"),
        pytest.param(9, Reason.SCHEDULERS_TURN, id="a tier above all there are is the widest"),
    ],
)
def test_a_gang_fits_under_the_switch_that_it_asks_for(tier, word):
    gang = state_of(job("a", minimum=5, maximum=5, spread=Spread(tier=tier)))
    at = world([2, 2, 2, 2], gang, leaves=[0, 0, 1, 1])
    room = at.room.copy()
    room.switches = (*room.switches, room.switches[0] * 0)
    assert why(replace(at, room=room)) == {"a": word}


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        pytest.param([0], Reason.SCHEDULERS_TURN, id="beside those that it has"),
        pytest.param([2], Reason.NEEDS_MORE, id="not where they do not stand"),
        pytest.param([0, 2], Reason.NEEDS_MORE, id="nowhere, when they stand under two"),
        pytest.param([4], Reason.NEEDS_MORE, id="nowhere, when one is off the map"),
        pytest.param([UNKNOWN_NODE], Reason.SCHEDULERS_TURN, id="anywhere, when nobody knows their nodes"),
    ],
)
def test_the_rest_of_a_gang_joins_its_members(rows, word):
    gang = state_of(job("a", minimum=len(rows) + 2, maximum=4, spread=Spread(tier=1)), rows)
    at = world([3, 1, 1, 0, 3], gang, leaves=[0, 0, 1, 1, -1])
    assert why(at)["a"] is word


def test_a_gang_counts_under_the_switch_that_holds_it_and_no_other():
    gangs = [
        state_of(job(name, minimum=size, maximum=size, spread=Spread(tier=1))) for name, size in (("a", 4), ("bb", 3))
    ]
    assert set(why(world([2, 2, 2, 1], *gangs, leaves=[0, 0, 1, 1])).values()) == {Reason.SCHEDULERS_TURN}


@pytest.mark.parametrize(
    ("headroom", "expected_sizes"),
    [
        pytest.param({}, (4, Reason.IDLE_ROOM), id="nothing is kept"),
        pytest.param({"policy": 1}, (3, Reason.IDLE_ROOM), id="by the policy"),
        pytest.param({"own": 2}, (2, Reason.IDLE_ROOM), id="by its owner"),
        pytest.param({"own": 0}, (4, Reason.IDLE_ROOM), id="none of it by its owner"),
        pytest.param({"policy": 1, "own": 2}, (2, Reason.IDLE_ROOM), id="the larger of both"),
        pytest.param({"policy": 2, "own": 3}, (1, Reason.HEADROOM_KEPT), id="all of it"),
    ],
)
def test_so_much_is_kept_free_in_a_queue(headroom, expected_sizes):
    at = world([9], state_of(job("a"), [0]), queues={"q": {"limit": 4}})
    own = {GPU: headroom["own"]} if "own" in headroom else {}
    at = replace(at, queues={"q": replace(at.queues["q"], headroom=own)})
    step = plan(at, replace(POLICY, headroom={GPU: headroom["policy"]} if "policy" in headroom else {}))["a"]
    assert (step.target, step.reason) == expected_sizes


@pytest.mark.parametrize(
    ("used", "own", "leaves"),
    [
        pytest.param(4, {"deserved": 3}, True, id="more than is its own is borrowed"),
        pytest.param(3, {"deserved": 3}, False, id="as much as is its own is not"),
        pytest.param(3, {}, True, id="all is where nobody has said what is its own"),
    ],
)
def test_another_queue_gives_what_it_has_borrowed(used, own, leaves):
    lent = state_of(job("lent", replicas=used, queue="other"), [0] * used)
    at = world([used], lent, state_of(job("waits", queue="own")), queues={"own": {}, "other": own})
    assert (plan(at)["lent"].target < used) is leaves


@pytest.mark.parametrize(
    ("pause", "is_giver"),
    [
        pytest.param(Pause.NONE, True, id="nothing"),
        pytest.param(Pause.GROW, True, id="growth"),
        pytest.param(Pause.SHRINK, False, id="shrinking"),
        pytest.param(Pause.BOTH, False, id="both"),
    ],
)
def test_what_an_owner_has_forbidden_decides_whether_his_job_gives(pause, is_giver):
    at = world([2], state_of(job("a", replicas=2, pause=pause), [0, 0]), state_of(job("waits")))
    assert (plan(at)["a"].target == 1) is is_giver
    other = replace(job("waits"), key=JobKey("Job", "another", "waits"))
    assert plan(world([2], state_of(job("a", replicas=2, pause=pause), [0, 0]), state_of(other)))["a"].target == 1


def test_what_is_noted_of_a_change_as_conditions():
    step = Step(job("a").key, 2, 1, Reason.IDLE_ROOM, "room in queue q")
    fields = [tuple(each.values()) for each in conditions(job("a"), step, NOW_S)]
    assert fields == [
        ("AbleToScale", "True", "IdleRoom", "room in queue q", rfc3339(NOW_S)),
        ("ScalingActive", "True", "ValidMetricFound", "queue q", rfc3339(NOW_S)),
        ("ScalingLimited", "False", "WithinBounds", "1 to 4 workers", rfc3339(NOW_S)),
    ]


LEAVES = TerminatingPod("q", shape(1), 0)


@pytest.mark.parametrize(
    ("nodes", "others", "more", "reason"),
    [
        pytest.param([1], [], {}, (Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"), id="the nodes are full"),
        pytest.param(
            [9], [], {"queues": {"q": {"limit": 1}}}, (Reason.NO_FREE_ROOM, "queue q is full"), id="its queue is full"
        ),
        pytest.param(
            [9], [], {"queues": {"q": {"open": False}}}, (Reason.QUEUE_CLOSED, "queue q is closed"), id="it is closed"
        ),
        pytest.param(
            [9],
            [state_of(job("bb"))],
            {},
            (Reason.OTHERS_WAIT, "a job of queue q is about to start"),
            id="somebody starts in its queue",
        ),
        pytest.param(
            [2],
            [state_of(job("bb", queue="r"))],
            {"queues": {"q": {}, "r": {}}},
            (Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"),
            id="somebody starts elsewhere in what is left",
        ),
        pytest.param(
            [1],
            [],
            {"terminating_pods": (LEAVES,)},
            (Reason.NO_FREE_ROOM, "what will be free is not free yet"),
            id="a pod goes",
        ),
        pytest.param(
            [5],
            [state_of(job("b", replicas=2, maximum=2), [0] * 4)],
            {},
            (Reason.NO_FREE_ROOM, "what will be free is not free yet"),
            id="workers go",
        ),
        pytest.param(
            [6],
            [state_of(job("b", replicas=2, maximum=2), [0] * 4), state_of(job("c", queue="r"))],
            {"queues": {"q": {}, "r": {}}},
            (Reason.NO_FREE_ROOM, "what will be free is not free yet"),
            id="workers go, and somebody starts in what is free",
        ),
        pytest.param(
            [7],
            [state_of(job("b", minimum=2, unit=2, maximum=6, replicas=6), [0] * 6), state_of(job("c", queue="r"))],
            {"queues": {"q": {}, "r": {}}},
            (Reason.NO_FREE_ROOM, "what will be free is not free yet"),
            id="two workers go for one",
        ),
    ],
)
def test_why_there_is_no_room_to_grow(nodes, others, more, reason):
    step = plan(world(nodes, state_of(job("a"), [0]), *others, **more))["a"]
    assert (step.target, step.reason, step.detail) == (1, *reason)


def test_sizes_that_double_grow_step_by_step():
    one_job = job("a", maximum=16, sizes=Sizes(1, doubles=True))
    assert plan(world([16], state_of(one_job, [0])))["a"].target == 16
    assert plan(world([15], state_of(one_job, [0])))["a"].target == 8


@pytest.mark.parametrize(
    ("pods", "lacks"),
    [
        pytest.param({}, [(shape(1), 2), (shape(4), 3)], id="nobody is told of: all of them"),
        pytest.param({"other_pods": (1,)}, [(shape(1), 2), (shape(4), 2)], id="one is there"),
        pytest.param({"other_pods": (3,), "finished": 1}, [(shape(1), 1)], id="all are, and a worker has ended"),
    ],
)
def test_what_a_waiting_job_lacks_to_its_min_other_roles_included(pods, lacks):
    one_job = job("a", minimum=2, other_roles=((shape(4), 3),))
    assert lacking_pods(state_of(one_job, **pods)) == lacks


def test_a_fault_that_only_several_jobs_bring_about_together_is_nobodys():
    def decide_or_raise(at, policy, now_s):
        if len(at.jobs) > 1:
            raise ZeroDivisionError("of both")
        return decide(at, policy, now_s)

    with pytest.raises(ZeroDivisionError):
        decide_safely(decide_or_raise, world([8], state_of(job("a"), [0]), state_of(job("bb"), [0])), POLICY, NOW_S)


def test_a_queue_that_gave_back_its_loan_keeps_no_other_from_giving():
    first = state_of(job("xx", replicas=3, queue="o"), [0, 0, 0])
    second = state_of(job("y", replicas=3, queue="p"), [0, 0, 0])
    queues = {"own": {}, "o": {"deserved": 2}, "p": {"deserved": 2}}
    steps = plan(world([6], first, second, state_of(job("waits", minimum=2, queue="own")), queues=queues))
    assert {name: step.target for name, step in steps.items()} == {"xx": 2, "y": 2, "waits": 2}


@pytest.mark.parametrize("queue_of", [{"old": "o", "newer": "p"}, {"old": "p", "newer": "o"}], ids=["p", "o"])
def test_of_several_queues_that_borrow_the_newest_gives_first(queue_of):
    lent = [state_of(job(name, replicas=3, queue=queue), [0] * 3) for name, queue in queue_of.items()]
    steps = plan(world([6], *lent, state_of(job("waits", queue="own")), queues={"own": {}, "o": {}, "p": {}}))
    assert {name: step.target for name, step in steps.items()} == {"old": 3, "newer": 2, "waits": 1}


def test_room_that_has_settled_is_used_up_once():
    """Three have been idle: the first grows into two of them, and of the last one the next gets no unit of two."""
    first, second = state_of(job("a", maximum=3), [0]), state_of(job("bb", unit=2, minimum=2, maximum=4), [0, 0])
    aged = [replace(each, workers=tuple(replace(w, since_s=0.0) for w in each.workers)) for each in (first, second)]
    steps = plan(world([9], *aged, idle_room={NODES: {GPU: 3}}))
    assert {name: (step.target, step.reason) for name, step in steps.items()} == {
        "a": (3, Reason.IDLE_ROOM),
        "bb": (2, Reason.ROOM_SETTLES),
    }


def test_unsettled_room_is_nobodys_though_another_could_never_pay_for_it():
    observed_job = [state_of(job("a"), [0]), state_of(job("dear", resize_budget=ResizeBudget(restart_s=9e9)), [0])]
    aged = [replace(each, workers=tuple(replace(w, since_s=0.0) for w in each.workers)) for each in observed_job]
    assert why(world([6], *aged, idle_room={NODES: {GPU: 0}}))["a"] is Reason.ROOM_SETTLES
    assert why(world([6], *aged)) == {"a": Reason.IDLE_ROOM, "dear": Reason.MARGINAL_GAIN}


def test_who_may_not_shrink_may_grow_to_its_most():
    assert plan(world([2], state_of(job("a", maximum=2, pause=Pause.SHRINK), [0])))["a"].target == 2
    assert why(world([3], state_of(job("a", maximum=2, replicas=2, pause=Pause.SHRINK), [0, 0]))) == {
        "a": Reason.AT_MAX
    }


def test_a_queue_below_another_is_held_to_both():
    queues = {"low": QueueShare({GPU: 4}, parent="top"), "top": QueueShare({GPU: 3})}
    at = replace(world([9], state_of(job("a", queue="low"), [0])), queues=queues)
    at = replace(at, queues={name: replace(queue, used={GPU: 1}) for name, queue in queues.items()})
    assert plan(at)["a"].target == 3


@pytest.mark.parametrize(
    ("term", "age_s", "theirs"),
    [
        pytest.param("8", 0, True, id="a later term, just now"),
        pytest.param("7", 0, False, id="our own term"),
        pytest.param("6", 0, False, id="an earlier one"),
        pytest.param("8", 119, True, id="a moment ago"),
        pytest.param("8", 120, False, id="too long ago: a Lease that was deleted counts from 0 again"),
        pytest.param("8", -119, True, id="by a clock that is a little ahead"),
        pytest.param("", 0, False, id="nobody's"),
    ],
)
def test_whoever_leads_by_now_has_written_a_later_term_a_moment_ago(term, age_s, theirs):
    notes = {labels.TERM: term, labels.RESIZED_AT: rfc3339(NOW_S - age_s)}
    assert is_overruled(notes, 7, NOW_S) is theirs
    assert is_overruled({labels.TERM: term}, 7, NOW_S) is False


def test_a_job_of_a_bank_pays_what_its_owner_says_of_a_restart():
    cheap, dear = (job("a", resize_budget=ResizeBudget(restart_s=own)) for own in (0.0, 2000.0))
    assert pays_off(cheap, 2, POLICY)
    assert not pays_off(dear, 2, POLICY)
    assert why(world([4], state_of(dear, [0])), replace(POLICY, start_s=0.0)) == {"a": Reason.IDLE_ROOM}
