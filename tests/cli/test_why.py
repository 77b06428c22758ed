"""`turnout why` as text: the chain, and which job is meant."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import NODES, Reason
from turnout.autoscaler.reporting.forecast import Estimate, RuntimeStats, forecast
from turnout.autoscaler.reporting.why import chain
from turnout.cli.job_names import BadJobName, read
from turnout.cli.why import (
    NoSuchJob,
    duration_text,
    known_words,
    resolve_job,
    rows,
    start_text,
    title,
    with_controller_report,
)
from turnout.jobs.model import JobKey, JobLifecycle, Pause
from turnout.kube.reasons import AUTOSCALER

SOON = {"created": "1970-01-12T13:43:40Z"}  # three minutes before now


def explanation_text(name, at, policy=POLICY):
    """Title and text by what it is about."""
    steps = decide(at, policy, NOW_S)
    key = JobKey("Job", "ns", name)
    found = chain(key, at, steps, policy, NOW_S, [], (GPU,), forecast(at, steps, RuntimeStats(), NOW_S).get(key))
    return title(found), dict(rows(found))


A = state_of(job("a", maximum=8, **SOON), [0])
LENT = state_of(job("a", minimum=1, maximum=4, replicas=4, **SOON), [0] * 4)
STUCK = state_of(job("a", replicas=3, **SOON), [0, None, None])
LATE = replace(STUCK, workers=tuple(replace(each, since_s=NOW_S - 60) for each in STUCK.workers))
FLAT = ((1, 1.0), (8, 1.01))
POOR = {"resized_s": NOW_S - 700, "gained_s": -5000.0}
# A world for each reason, in which it is the reason for job a.
WORLDS = {
    Reason.IDLE_ROOM: world([4], A),
    Reason.RETURNED: world([8], replace(A, size_before=4)),
    Reason.UNSCHEDULABLE: world([8], state_of(job("a"), unbindable="pod a-0 waits behind a scheduling gate")),
    Reason.MAKES_ROOM: world([4], LENT, state_of(job("bb", minimum=2, maximum=2))),
    Reason.ROOM_TAKEN: world([1], LATE),
    Reason.AT_MAX: world([8], LENT),
    Reason.COOLDOWN: world([8], state_of(job("a", resized_s=NOW_S - 5), [0])),
    Reason.NO_FREE_ROOM: world([1], A),
    Reason.ROOM_SETTLES: world([8], state_of(job("a", resized_s=NOW_S - 700), [0]), idle_room={NODES: {GPU: 0}}),
    Reason.OTHERS_WAIT: world([4], A, state_of(job("bb", minimum=3, maximum=3))),
    Reason.MARGINAL_GAIN: world([8], state_of(job("a", curve=FLAT), [0])),
    Reason.BUDGET_SPENT: world([8], state_of(job("a", **POOR), [0])),
    Reason.NOT_READY: world([8], state_of(job("a", replicas=2), [0])),
    Reason.PAUSED: world([8], state_of(job("a", pause=Pause.GROW), [0])),
    Reason.RIGID: world([8], state_of(job("a", maximum=1), [0])),
    Reason.REFUSED: world([8], state_of(job("a", refused="its own HPA resizes it"), [0])),
    Reason.QUEUE_CLOSED: world([8], state_of(job("a")), queues={"q": {"open": False}}),
    Reason.SUSPENDED: world([8], state_of(job("a", lifecycle=JobLifecycle.SUSPENDED))),
    Reason.SCHEDULERS_TURN: world([8], state_of(job("a"))),
    Reason.WAITS_FOR_ROOM: world(
        [4], replace(LENT, job=replace(LENT.job, key=JobKey("Job", "ns", "b"))), state_of(job("a"))
    ),
    Reason.NEEDS_MORE: world([2], state_of(job("bb", maximum=1), [0]), state_of(job("a", minimum=2))),
    Reason.OVER_QUOTA: world([8], state_of(job("a", minimum=2)), queues={"q": {"limit": 1}}),
    Reason.STALE: world([8], A, complete=False),
    Reason.NODES_UNREADY: world([8], A, unready=0.5),
    Reason.CLOCK_JUMPED: world([8], A, jumped_s=3600.0),
}


@pytest.mark.contract("XD-07")
@pytest.mark.parametrize("reason", WORLDS, ids=lambda reason: reason.value)
def test_every_reason_is_told_with_its_sentence_and_what_its_owner_can_do(reason):
    head, text = explanation_text("a", WORLDS[reason])
    assert head.endswith(f": {reason.value}")
    assert AUTOSCALER[reason.value].means in text["decision"]
    assert text["next"] == AUTOSCALER[reason.value].next
    assert text.keys() >= {"queue", "held by", "quota", "room", "gang"}
    assert ("start" in text) is (" has waited" in head)


def test_the_reasons_that_no_world_here_shows_are_an_admins():
    assert set(Reason) - WORLDS.keys() == {Reason.HEADROOM_KEPT, Reason.ALL_PAUSED, Reason.RELEASED}
    policy = replace(POLICY, headroom={GPU: 2})
    _, text = explanation_text("a", world([2], A), policy)
    assert "2 kept free" in text["queue"]
    assert AUTOSCALER[Reason.HEADROOM_KEPT.value].means in text["decision"]


def test_a_waiting_job_reads_from_its_queue_to_its_start():
    lent = state_of(job("a", minimum=6, maximum=8, replicas=8, **SOON), [0] * 8)
    at = world([8], lent, state_of(job("b", minimum=3, maximum=3, **SOON)), queues={"q": {"limit": 8, "deserved": 5}})
    head, text = explanation_text("b", at)
    assert head == "Job/ns/b has waited for 3 min: NeedsMore"
    assert text["queue"] == "q: 8 of 8 GPUs used, 0 free, 5 its own, so 3 borrowed"
    assert text["held by"] == "Job/ns/a (6 + 2 elastic)"
    assert text["quota"] == f"its min lacks 3 {GPU}, 0 free: 3 short"
    assert text["gang"] == "it needs 3 workers, 0 with a node: 3 lacking"
    assert text["start"].startswith("likely in ")
    assert "a guess" in text["start"]


def test_a_running_job_reads_what_it_has_and_what_comes_next():
    head, text = explanation_text(
        "a", world([8], state_of(job("a", minimum=1, maximum=4, replicas=2, resized_s=NOW_S - 300), [0, 0]))
    )
    assert head == "Job/ns/a has run for 5 s: Cooldown"
    assert text["size"] == "2 workers of 1 to 4, 1 of them elastic; the next size is 3"
    assert "5 min of its cooldown are left" in text["balance"]
    assert "start" not in text


def test_a_job_applied_again_reads_that_this_bounds_nothing():
    resized_job = job("a", minimum=2, maximum=8, replicas=2, resized_s=NOW_S - 60, reapplied_size=6)
    _, text = explanation_text("a", world([8], state_of(resized_job, [0, 0])))
    assert text["size"].endswith("; its object was applied again as it was submitted, which took it from 6 to 2")


def test_a_job_scaled_by_hand_reads_until_when_that_bounds_it():
    scaled_job = job("a", minimum=2, maximum=8, replicas=4, wanted_workers=4)
    head, text = explanation_text("a", world([8], state_of(scaled_job, [0] * 4)))
    assert head.endswith(": AtMax")
    assert (
        "somebody has set its size to 4 by hand, and it is not made larger until the annotation turnout.dev/wish"
        in text["size"]
    )


def test_one_that_could_not_start_even_on_an_empty_cluster_is_told_so():
    _, text = explanation_text("b", world([8], LENT, state_of(job("b", minimum=20, maximum=20))))
    assert "at most 8 would fit in the empty cluster" in text["gang"]
    assert text["start"].startswith("not known")


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((0, 300, 4000), "likely in 5 min (1970-01-12T13:51:40Z), at once at the earliest, 67 min at the latest: so"),
        ((60, 90, float("inf")), "likely in 90 s (1970-01-12T13:48:10Z), 60 s at the earliest, with no bound: so"),
        ((60, float("inf"), float("inf")), "not known, not before 60 s: so"),
        ((float("inf"),) * 3, "so"),
    ],
)
def test_a_start_is_told_with_how_sure_it_is(times, text):
    assert start_text(Estimate(*(NOW_S + each for each in times), "so"), NOW_S) == text


@pytest.mark.parametrize(
    ("s", "text"), [(-3, "0 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h"), (200_000, "2.3 days")]
)
def test_times_are_told_as_people_say_them(s, text):
    assert duration_text(s) == text


def test_what_its_controller_waits_for_goes_before_the_autoscalers_advice():
    explanation_text = [("room", "enough"), ("next", "wait")]
    assert with_controller_report(explanation_text, "it is suspended", "resume it") == [
        ("controller", "it is suspended"),
        ("room", "enough"),
        ("next", "resume it"),
    ]
    assert with_controller_report(explanation_text, "2 of 2 pods run", "") == [
        ("controller", "2 of 2 pods run"),
        *explanation_text,
    ]


KEYS = [
    JobKey("Job", "x", "a"),
    JobKey("PyTorchJob", "x", "a"),
    JobKey("PyTorchJob", "x", "bert"),
    JobKey("VolcanoJob", "y", "bert"),
    JobKey("PyTorchJob.ctyun.cn", "y", "gpt"),
    JobKey("Pod", "x", "Job/lone"),
]


@pytest.mark.parametrize(
    ("query", "namespace", "found"),
    [
        ("PyTorchJob/x/a", "z", KEYS[1]),
        ("pytorchjobs/x/bert", "z", KEYS[2]),
        ("vcjob/bert", "y", KEYS[3]),
        ("bert", "x", KEYS[2]),
        ("bert", "y", KEYS[3]),
        ("pytorchjobs.ctyun.cn/y/gpt", "x", KEYS[4]),
        ("PyTorchJob.ctyun.cn/gpt", "y", KEYS[4]),
        ("pytorch/gpt", "y", KEYS[4]),
        ("jobs.batch/a", "x", KEYS[0]),
        ("jobs.batch.volcano.sh/bert", "y", KEYS[3]),
        ("pytorchjobs.v1.kubeflow.org/bert", "x", KEYS[2]),
        ("PyTorchJob.kubeflow.org/bert", "x", KEYS[2]),
        ("pytorchjobs.v1.ctyun.cn/gpt", "y", KEYS[4]),
        ("pods.v1/x/Job/lone", "z", KEYS[5]),
        ("Pod/x/Job/lone", "z", KEYS[5]),
    ],
)
def test_a_job_is_meant_by_as_much_of_its_name_as_is_needed(query, namespace, found):
    name = read(query, known_words())
    assert resolve_job(name._replace(namespace=name.namespace or namespace), KEYS) == found


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("a", "'a' may be Job/x/a or PyTorchJob/x/a: say which"),
        ("berth", "there is no job 'berth' in namespace x; did you mean PyTorchJob/x/bert, VolcanoJob/y/bert?"),
        ("VolcanoJob/bert", "there is no VolcanoJob 'bert' in namespace x; did you mean"),
        ("zzz", "there is no job 'zzz' in namespace x; there are 6 jobs in all"),
    ],
)
def test_a_name_that_means_none_or_several_says_which_there_are(query, says):
    with pytest.raises(NoSuchJob) as error:
        resolve_job(read(query, known_words())._replace(namespace="x"), KEYS)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        pytest.param("cronjob/a", "'cronjob' is no kind of job here; those are", id="an unknown kind"),
        pytest.param("trainjobs.trainer.kubeflow.org/a", "a TrainJob is never resized", id="a kind of fixed size"),
        pytest.param("pytorchjobs.other.org/bert", "is no kind of job here", id="another group"),
        pytest.param("jobs.sometool.io/bert", "is no kind of job here", id="another group's kind of the same name"),
        pytest.param("a/b/c/d", "is no name of a job", id="four parts"),
        pytest.param("Job//a", "is no name of a job", id="an empty part"),
        pytest.param("BERT!", "cannot be the name of a job", id="letters that no name has"),
        pytest.param("Job/Team A/a", "cannot be a namespace", id="a namespace that cannot be"),
    ],
)
def test_a_text_that_cannot_be_a_name_is_another_error_than_a_missing_job(query, says):
    with pytest.raises(BadJobName) as error:
        read(query, known_words())
    assert says in str(error.value)
