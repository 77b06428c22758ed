"""The autoscaler's page: every queue always, single jobs up to a bound, and only from the replica that leads."""

import math
import subprocess
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hack.controlplane.tools import cache
from tests.autoscaler.world import GPU, NOW_S, job, state_of, world
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.model import Reason, Step, Worker
from turnout.autoscaler.reporting.samples import MAX_JOBS
from turnout.autoscaler.reporting.usage import IdleReason
from turnout.jobs.model import JobKey, JobLifecycle
from turnout.kube.times import rfc3339, unix_s

NEVER = unix_s("2026-01-01T00:00:01Z")  # when jobs of one letter are made


class Clock:
    """Moved by hand."""

    def __init__(self):
        self.now_s = 50.0

    def monotonic(self):
        return self.now_s

    def wall(self):
        return NOW_S + self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics(clock):
    metrics = Metrics((GPU,), clock)
    metrics.leading.set(1)
    return metrics


def samples(metrics):
    """{(name, its labels in the order of their names): value}"""
    families = text_string_to_metric_families(metrics.page().decode())
    return {
        (sample.name.removeprefix("turnout_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def hold(each, reason=Reason.AT_MAX):
    return Step(each.job.key, each.job.replicas, each.job.replicas, reason)


def look(metrics, *jobs, queues=None, starts=None, steps=None):
    steps_of_look = [hold(each, Reason.NEEDS_MORE if each.is_waiting else Reason.AT_MAX) for each in jobs]
    metrics.record_decision(world([8, 8], *jobs, queues=queues), steps_of_look if steps is None else steps, starts)


def grown(name="a", **more):
    """Two workers of the min and three above it, of two GPUs each."""
    return state_of(job(name, minimum=2, maximum=8, replicas=5, gpus=2, **more), rows=[0, 0, 0, 0, 1])


def short(name="w", minimum=4, **more):
    """Nothing of it runs."""
    return state_of(job(name, minimum=minimum, **more))


@pytest.mark.real
def test_promtool_accepts_the_page(metrics):
    promtool = cache.binary("promtool")
    waiting = short()
    look(metrics, grown(), waiting, starts={waiting.job.key: (1.0, 2.0, 3.0)})
    metrics.count_outcome(Step(grown().job.key, 5, 2, Reason.IDLE_ROOM), "Written")
    process = subprocess.run([promtool, "check", "metrics"], input=metrics.page(), capture_output=True, timeout=30)
    assert (process.returncode, process.stdout + process.stderr) == (0, b"")


@pytest.mark.contract("CS-12", "VE-06", "VE-08", "VE-12", "VE-13")
def test_a_queue_is_told_in_full(metrics):
    look(metrics, grown(), short(), queues={"q": {"limit": 12, "deserved": 4}, "idle": {"limit": 3}})
    assert (
        samples(metrics).items()
        >= {
            ("queue_gpus", "q", "limit"): 12,
            ("queue_gpus", "q", "deserved"): 4,
            ("queue_gpus", "q", "used"): 10,
            ("queue_gpus", "q", "available"): 2,
            ("queue_gpus", "idle", "available"): 3,
            ("queue_jobs", "q", "running"): 1,
            ("queue_jobs", "q", "waiting"): 1,
            ("queue_jobs", "idle", "waiting"): 0,
            ("queue_worker_gpus", "min", "q"): 4,
            ("queue_worker_gpus", "elastic", "q"): 6,
            ("queue_worker_gpus", "elastic", "idle"): 0,
            ("queue_missing_gpus", "q"): 4,
            ("queue_jobs_by_reason", "q", "NeedsMore"): 1,
            ("queue_jobs_by_reason", "q", "AtMax"): 1,
            ("queue_unlisted_jobs", "q"): 0,
        }.items()
    )


def test_a_queue_without_a_limit_has_nothing_free_to_tell(metrics):
    look(metrics, grown())
    found = samples(metrics)
    assert found["queue_gpus", "q", "used"] == 10
    assert not {("queue_gpus", "q", "available"), ("queue_gpus", "q", "limit")} & found.keys()


def test_a_queue_that_only_jobs_name_is_told_too(metrics):
    look(metrics, grown(queue="namespace/ns"), queues={})
    assert samples(metrics)["queue_worker_gpus", "elastic", "namespace/ns"] == 6


def test_a_job_is_told_by_name(metrics):
    waiting = short()
    look(metrics, grown(), waiting, starts={waiting.job.key: (10.0, 20.0, 30.0), grown().job.key: (1.0, 1.0, 1.0)})
    w, a = ("Job", "w", "ns"), ("Job", "a", "ns")  # kind, name, namespace: as the labels are sorted
    found = {key: value for key, value in samples(metrics).items() if key[0].startswith("job_")}
    assert found == {
        ("job_info", *a, "q"): 1,
        ("job_info", *w, "q"): 1,
        ("job_gpus_ahead", *w, "q"): 0,
        ("job_promised_start_timestamp_seconds", *w, "q"): 30,
        ("job_gpus", *a, "min", "q"): 4,
        ("job_gpus", *a, "elastic", "q"): 6,
        ("job_gpus", *w, "min", "q"): 0,
        ("job_gpus", *w, "elastic", "q"): 0,
        ("job_reason", *a, "q", "AtMax"): 1,
        ("job_reason", *w, "q", "NeedsMore"): 1,
        ("job_missing_gpus", *w, "q"): 4,
        ("job_waiting_since_timestamp_seconds", *w, "q"): NEVER,
        ("job_predicted_start_timestamp_seconds", "earliest", *w, "q"): 10,
        ("job_predicted_start_timestamp_seconds", "likely", *w, "q"): 20,
        ("job_predicted_start_timestamp_seconds", "latest", *w, "q"): 30,
    }


def test_an_expected_start_stays_until_the_next_and_is_absent_if_unknown(metrics):
    waiting, name = short(), ("Job", "w", "ns", "q")
    look(metrics, waiting, starts={waiting.job.key: (10.0, math.inf, math.inf)})
    look(metrics, waiting)
    found = samples(metrics)
    assert found["job_predicted_start_timestamp_seconds", "earliest", *name] == 10
    assert ("job_predicted_start_timestamp_seconds", "latest", *name) not in found
    metrics.set_starts({})
    assert not [key for key in samples(metrics) if "estimated" in key[0]]


@pytest.mark.parametrize(
    ("waiting", "since_s"),
    [
        pytest.param(short("a"), NEVER, id="it never ran: since it was made"),
        pytest.param(
            replace(short("a", minimum=2), workers=(Worker(0, 0, since_s=1.0), Worker(1, None, since_s=77.0))),
            77.0,
            id="it lost a worker: since the one in its place was made",
        ),
        pytest.param(
            replace(short("a", minimum=2), workers=(Worker(0, 0, since_s=1.0),)),
            NOW_S + 50,
            id="it lost a worker, and nobody has made another: since it was seen",
        ),
        pytest.param(short("a", created="yesterday"), NOW_S + 50, id="nobody knows: since it was seen"),
    ],
)
def test_it_is_told_since_when_a_job_waits(metrics, clock, waiting, since_s):
    for _ in range(2):  # what is known by sight stays
        look(metrics, waiting)
        clock.now_s += 5
    assert samples(metrics)["job_waiting_since_timestamp_seconds", "Job", "a", "ns", "q"] == since_s


def test_a_suspended_job_waits_for_nobody(metrics):
    look(metrics, short("s", lifecycle=JobLifecycle.SUSPENDED))
    found = samples(metrics)
    assert [found["queue_jobs", "q", state] for state in ("suspended", "waiting", "running")] == [1, 0, 0]
    assert found["queue_missing_gpus", "q"] == 0
    assert not [key for key in found if "waiting_since" in key[0]]


def test_bounded_job_metrics_take_waiting_then_largest_from_every_queue(metrics):
    crowd = [state_of(job(f"r{at:03}", minimum=1, replicas=1 + at % 4), rows=[0] * (1 + at % 4)) for at in range(300)]
    small = [state_of(job(f"s{at}", queue="p"), rows=[0]) for at in range(5)]
    look(metrics, *crowd, short("w"), *small, queues={"q": {}, "p": {}})
    found = samples(metrics)
    reasons = [key for key in found if key[0] == "job_reason"]
    assert len(reasons) == MAX_JOBS
    assert {key[2] for key in reasons} >= {"w", *(f"s{at}" for at in range(5))}
    sizes = {each.job.key.name: len(each.workers) for each in crowd}
    left = sizes.keys() - {key[2] for key in reasons}
    assert max(sizes[name] for name in left) <= min(sizes[key[2]] for key in reasons if key[2] in sizes)
    assert found["queue_unlisted_jobs", "q"] == 301 + 5 - MAX_JOBS == len(left)
    assert found["queue_unlisted_jobs", "p"] == 0
    assert found["queue_jobs", "q", "running"] == 300


def test_time_is_lent_as_long_as_workers_above_the_min_run(metrics, clock):
    look(metrics, grown())  # six GPUs
    clock.now_s += 10
    assert samples(metrics)["queue_elastic_gpu_seconds_total", "q"] == 60
    clock.now_s += 10
    look(metrics, state_of(job("a", minimum=2, maximum=8, replicas=3, gpus=2), rows=[0, 0, 0]))  # two of them are left
    clock.now_s += 5
    assert samples(metrics)["queue_elastic_gpu_seconds_total", "q"] == 130


def test_only_who_leads_tells_of_queues_and_lends(metrics, clock):
    look(metrics, grown())
    clock.now_s += 10
    metrics.leading.set(0)
    clock.now_s += 1000
    found = samples(metrics)
    assert not {
        key for key in found if key[0] in ("queue_gpus", "queue_jobs", "job_gpus", "autoscaler_observation_age_seconds")
    }
    assert found["queue_elastic_gpu_seconds_total", "q"] == 60
    metrics.leading.set(1)
    look(metrics, grown())
    clock.now_s += 1
    assert samples(metrics)["queue_elastic_gpu_seconds_total", "q"] == 66


def test_every_count_of_a_queue_begins_with_nought(metrics):
    look(metrics, grown(), queues={"q": {}, "idle": {}})
    found = samples(metrics)
    for queue in ("q", "idle"):
        assert found["queue_elastic_gpu_seconds_total", queue] == 0
        assert found["queue_assumed_restart_gpu_seconds_total", queue] == 0
        assert found["queue_resized_gpus_total", "grow", queue] == 0
        changes = {(key[1], key[4]) for key in found if key[0] == "autoscaler_changes_total" and key[3] == queue}
        assert changes == {
            ("grow", Reason.IDLE_ROOM.value),
            ("grow", Reason.RETURNED.value),
            ("shrink", Reason.MAKES_ROOM.value),
            ("shrink", Reason.ROOM_TAKEN.value),
            ("shrink", Reason.RELEASED.value),
        }
        assert found["autoscaler_changes_total", "grow", "Written", queue, "RoomReturned"] == 0


def test_a_change_that_was_written_is_told_with_what_it_cost(metrics):
    look(metrics, grown())
    metrics.count_outcome(Step(grown().job.key, 3, 5, Reason.MAKES_ROOM), "Written")
    metrics.count_outcome(Step(grown().job.key, 8, 5, Reason.IDLE_ROOM), "Refused")
    found = samples(metrics)
    assert found["autoscaler_changes_total", "shrink", "Written", "q", "MakesRoom"] == 1
    assert found["autoscaler_changes_total", "grow", "Refused", "q", "IdleRoom"] == 1
    assert found["queue_resized_gpus_total", "shrink", "q"] == 4
    assert found["queue_resized_gpus_total", "grow", "q"] == 0
    assert (
        found["queue_assumed_restart_gpu_seconds_total", "q"] == 3 * 2 * 60
    )  # three workers of two GPUs go on, a minute late


def test_a_change_as_a_job_starts_costs_nothing(metrics):
    look(metrics, grown())
    metrics.count_outcome(Step(grown().job.key, 8, 5, Reason.IDLE_ROOM, at_start=True), "Written")
    found = samples(metrics)
    assert found["queue_resized_gpus_total", "grow", "q"] == 6
    assert found["queue_assumed_restart_gpu_seconds_total", "q"] == 0


def test_what_is_only_meant_is_counted_once_while_it_stays_the_same(metrics):
    grow = Step(grown().job.key, 8, 5, Reason.IDLE_ROOM)
    for steps in ([grow], [grow], [hold(grown())], [grow]):
        look(metrics, grown(), steps=steps)
        for step in steps:
            if step.changes:
                metrics.count_outcome(step, "DryRun")
    found = samples(metrics)
    assert found["autoscaler_changes_total", "grow", "DryRun", "q", "IdleRoom"] == 2
    assert found["queue_resized_gpus_total", "grow", "q"] == 0


def test_what_is_seen_grows_old_between_looks(metrics, clock):
    look(metrics, grown())
    clock.now_s += 7
    found = samples(metrics)
    assert found["autoscaler_observation_age_seconds",] == 7
    assert found["autoscaler_last_decision_timestamp_seconds",] == NOW_S + 50


def test_a_job_that_is_gone_leaves_no_series(metrics):
    look(metrics, grown(), short())
    look(metrics, grown(), queues={"q": {}})
    assert not [key for key in samples(metrics) if key[0].startswith("job_") and "w" in key]


def test_times_of_jobs_are_read_as_kubernetes_writes_them(metrics):
    look(metrics, short("w", created=rfc3339(123_456)))
    assert samples(metrics)["job_waiting_since_timestamp_seconds", "Job", "w", "ns", "q"] == 123_456


def test_the_promised_start_is_the_first_estimate_while_the_job_waits(metrics):
    waiting = short()
    promised = "job_promised_start_timestamp_seconds", "Job", "w", "ns", "q"
    look(metrics, waiting, starts={waiting.job.key: (10.0, 20.0, math.inf)})
    assert promised not in samples(metrics)
    look(metrics, waiting, starts={waiting.job.key: (10.0, 20.0, 30.0)})
    look(metrics, waiting, starts={waiting.job.key: (50.0, 60.0, 70.0)})
    assert samples(metrics)[promised] == 30


@pytest.mark.parametrize(
    ("promise_s", "result"),
    [
        pytest.param((20, 30, 40), "early", id="before the interval"),
        pytest.param((-20, 0, 20), "inside", id="inside the interval"),
        pytest.param((-40, -30, -20), "late", id="after the interval"),
    ],
)
def test_a_started_job_is_counted_by_its_first_estimate(metrics, clock, promise_s, result):
    waiting, now_s = short("a"), clock.wall()
    look(metrics, waiting, starts={waiting.job.key: tuple(now_s + each for each in promise_s)})
    look(metrics, waiting)
    look(metrics, grown("a"))
    look(metrics, grown("a"))
    found = samples(metrics)
    counts = {each: found["start_predictions_total", "q", each] for each in ("early", "inside", "late")}
    assert counts == dict.fromkeys(counts, 0) | {result: 1}


def test_a_job_that_was_deleted_while_it_waited_counts_nowhere(metrics):
    waiting = short()
    look(metrics, waiting, starts={waiting.job.key: (10.0, 20.0, 30.0)})
    look(metrics, grown())
    found = samples(metrics)
    assert sum(found["start_predictions_total", "q", each] for each in ("early", "inside", "late")) == 0


def test_the_gpus_ahead_are_those_that_the_jobs_before_it_miss(metrics):
    look(metrics, short("u", 3), short("v", 2), short("w", 4), grown(), short("x", 4, queue="other"))
    found = samples(metrics)
    ahead = {name: found["job_gpus_ahead", "Job", name, "ns", "q"] for name in ("u", "v", "w")}
    assert sorted(ahead.values()) == [0, 3, 5]
    assert found["job_gpus_ahead", "Job", "x", "ns", "other"] == 0


def test_every_job_has_its_queue_also_beyond_the_listed_jobs(metrics):
    look(metrics, *(grown(f"j{index}") for index in range(MAX_JOBS + 50)))
    assert sum(name[0] == "job_info" for name in samples(metrics)) == MAX_JOBS + 50


@pytest.mark.parametrize(("jobs", "others", "queues"), [
    pytest.param([], [(JobKey("StatefulSet", "ns", "web"), "q")], {("StatefulSet", "web"): "q"},
                 id="a StatefulSet's pods, which no known job owns"),
    pytest.param([JobKey("Job", "ns", "a")], [(JobKey("Job", "ns", "a"), "z")], {("Job", "a"): "q"},
                 id="a known job is named once, with its own queue"),
    pytest.param([JobKey("PyTorchJob.ctyun.cn", "ns", "a")], [],
                 {("PyTorchJob.ctyun.cn", "a"): "q", ("PyTorchJob", "a"): "q"},
                 id="Prometheus knows no API group: a longer kind has its short name too"),
    pytest.param([JobKey("PyTorchJob.ctyun.cn", "ns", "a"), JobKey("PyTorchJob", "ns", "a")], [],
                 {("PyTorchJob.ctyun.cn", "a"): "q", ("PyTorchJob", "a"): "r"},
                 id="the short name belongs to the job that has it"),
])  # fmt: skip
def test_the_names_by_which_series_of_launchers_find_their_queue(metrics, jobs, others, queues):
    metrics.show_cluster(dict, int, lambda: others)
    states = [grown(key.name, queue=queue) for key, queue in zip(jobs, "qr", strict=False)]
    look(metrics, *(replace(each, job=replace(each.job, key=key)) for each, key in zip(states, jobs, strict=True)))
    found = {name[1:3]: name[4] for name in samples(metrics) if name[0] == "job_info"}
    assert found == queues


def test_the_leader_shows_the_gpus_of_the_cluster(metrics):
    metrics.show_cluster(lambda: {"used": 6, "free": 2}, lambda: 3)
    assert ("cluster_gpus", "used") not in samples(metrics)
    look(metrics, grown())
    found = samples(metrics)
    assert (found["cluster_gpus", "used"], found["cluster_gpus", "free"]) == (6, 2)
    assert found["decision_log_lost_total",] == 3


SHARES = {"q": {"deserved": 4, "limit": 20}, "r": {"deserved": 8}}


def test_idle_gpus_are_counted_from_0_by_the_time_between_two_looks(metrics, clock):
    metrics.usage.set_sources(lambda: 6, lambda _: "", {})
    look(metrics, grown(), queues=SHARES)
    found = samples(metrics)
    assert {key: value for key, value in found.items() if key[0] == "idle_gpu_seconds_total"} == {
        ("idle_gpu_seconds_total", queue, reason.value): 0 for queue in ("q", "r", "other") for reason in IdleReason
    }
    clock.now_s += 10.0
    look(metrics, grown(), short(), queues=SHARES)
    clock.now_s += 5.0
    found = samples(metrics)
    assert found["idle_gpu_seconds_total", "r", "nobody_waits"] == 60
    assert found["idle_gpu_seconds_total", "r", "fragmented"] == 30


def test_lent_gpus_are_counted_by_pair_of_queues(metrics, clock):
    look(metrics, grown(), queues=SHARES)  # 6 elastic GPUs, all above the share; the other queue has 8 unused
    pair = ("q", "r")  # borrower and lender: as the labels are sorted
    found = samples(metrics)
    assert (found["lent_gpu_seconds_total", *pair], found["returned_gpus_total", *pair]) == (0, 0)
    clock.now_s += 10.0
    assert samples(metrics)["lent_gpu_seconds_total", *pair] == 60


@pytest.mark.parametrize(("beneficiary", "returned"), [
    pytest.param(None, {"r": 6}, id="to the queues whose share is unused"),
    pytest.param("w", {"s": 6}, id="to the queue of the job that gets the room"),
    pytest.param("v", {"q": 6}, id="to another job of its own queue"),
])  # fmt: skip
def test_returned_gpus_are_counted(metrics, beneficiary, returned):
    giver, others = grown(), [short("w", queue="s"), short("v")]
    look(metrics, giver, *others, queues={**SHARES, "s": {}})
    to = next((each.job.key for each in others if each.job.key.name == beneficiary), None)
    metrics.count_outcome(Step(giver.job.key, 2, 5, Reason.MAKES_ROOM, "", to), "Written")
    found = {key[2]: value for key, value in samples(metrics).items() if key[0] == "returned_gpus_total" and value}
    assert found == returned


def test_only_written_shrinks_return_gpus(metrics):
    look(metrics, grown(), queues=SHARES)
    metrics.count_outcome(Step(grown().job.key, 2, 5, Reason.RELEASED), "Refused")
    metrics.count_outcome(Step(grown().job.key, 8, 5, Reason.IDLE_ROOM), "Written")
    assert samples(metrics)["returned_gpus_total", "q", "r"] == 0


def test_the_time_of_a_reclaim_is_observed_by_queue(metrics, clock):
    waiting_job = short()
    look(metrics, waiting_job, steps=[hold(waiting_job, Reason.WAITS_FOR_ROOM)])
    assert samples(metrics)["reclaim_seconds_count", "q"] == 0
    clock.now_s += 42.0
    look(metrics, state_of(job("w", minimum=4), rows=[0] * 4))
    found = samples(metrics)
    assert (found["reclaim_seconds_count", "q"], found["reclaim_seconds_sum", "q"]) == (1, 42)


def test_usage_is_shown_by_the_leader_only(metrics, clock):
    metrics.usage.set_sources(lambda: 6, lambda _: "", {})
    look(metrics, grown(), queues=SHARES)
    clock.now_s += 10.0
    metrics.leading.set(0)
    clock.now_s += 10.0
    names = {"idle_gpu_seconds_total", "lent_gpu_seconds_total", "returned_gpus_total", "reclaim_seconds_count"}
    assert not names & {key[0] for key in samples(metrics)}
    metrics.leading.set(1)
    look(metrics, grown(), queues=SHARES)
    assert samples(metrics)["lent_gpu_seconds_total", "q", "r"] == 0


def test_decisions_within_a_second_count_as_one(metrics, clock):
    metrics.usage.set_sources(lambda: 6, lambda _: "", {})
    look(metrics, grown(), queues=SHARES)
    clock.now_s += 10.0
    look(metrics, short(), queues=SHARES)
    clock.now_s += 0.5
    look(metrics, grown(), short(), queues=SHARES)
    assert samples(metrics)["idle_gpu_seconds_total", "r", "nobody_waits"] == 60 + 3
    clock.now_s += 9.5
    found = samples(metrics)  # the last of them counts since the page was read
    assert found["lent_gpu_seconds_total", "q", "r"] == 60 + 60
    assert sum(value for key, value in found.items() if key[0] == "idle_gpu_seconds_total") == 6 * 20


def test_lines_about_usage_end_with_each_quarter_of_an_hour(metrics, clock):
    metrics.usage.set_sources(lambda: 6, lambda key: f"of-{key.name}", {})
    begin_s = 900_000.0
    due = []
    for second in (100, 800, 890, 901, 1700, 1810, 5000):
        clock.now_s = second
        look(metrics, grown(), queues=SHARES)
        due.append([line.seconds for line in metrics.usage.due_lines(begin_s + second)])
    assert due == [[], [], [], [801.0] * 2, [], [909.0] * 2, [3190.0] * 2]
    clock.now_s = 5010
    first, _ = metrics.usage.take_lines(begin_s + 5010)
    ((job, owner, gpu_s, elastic_gpu_s),) = [msgspec.structs.astuple(each) for each in first.jobs]
    assert (first.queue, job, owner, gpu_s, elastic_gpu_s) == ("q", "Job/ns/a", "of-a", 100.0, 60.0)


def test_the_user_of_a_job_is_read_once(metrics, clock):
    questions = []
    metrics.usage.set_sources(int, lambda key: questions.append(key) or "ann", {})
    for _ in range(3):
        look(metrics, grown(), queues=SHARES)
        clock.now_s += 10.0
        metrics.usage.take_lines(0.0)
    assert questions == [grown().job.key]
