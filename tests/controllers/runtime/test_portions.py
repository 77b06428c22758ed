"""A job's cost is bounded: children are made in portions, and a job whose pods are too many bytes is refused."""

import msgspec
import pytest

from tests.controllers import elasticjobs, jobs
from tests.controllers.jobs import NOW_S
from tests.controllers.volcano import volcanojobs
from turnout.controllers import children
from turnout.controllers.children import MAX_CREATED_BYTES, MAX_CREATED_CHILDREN
from turnout.controllers.kinds.elasticjob import ELASTICJOB
from turnout.controllers.kinds.job_reader import CHILDREN_BYTES
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.model import ChildState, Create, OwnedObjects, PodPhase, PodState, Reason
from turnout.controllers.reconcile import reconcile


def env(count, length=8):
    return [{"name": f"V{at}", "value": "x" * length} for at in range(count)]


def elastic(replicas, **container):
    return ELASTICJOB, elasticjobs.job(elasticjobs.worker(replicas, container))


def pytorch(replicas, **container):
    trains = {**jobs.CONTAINER, **container}
    return PYTORCHJOB, jobs.job(worker=jobs.role(replicas, containers=(trains,)))


def volcano(tasks, replicas, plugins=None, **container):
    tasks_of_job = [volcanojobs.task(f"t{at}", replicas, container=container) for at in range(tasks)]
    return VOLCANOJOB, volcanojobs.job(*tasks_of_job, plugins=plugins or {})


def size(write):
    return len(msgspec.json.encode(write.body))


def made_by(outcome):
    return [each for each in outcome.writes if isinstance(each, Create)]


def taken_in(owned, creates):
    """Return what a job owns once the API server has made these children; pods run at once."""
    pods, others = list(owned.pods), dict(owned.others)
    for body in (each.body for each in creates):
        key, marks = children.child_key(body), body["metadata"].get("labels") or {}
        role = next((text for name, text in marks.items() if name.endswith(("replica-type", "task-spec"))), "")
        index = next((int(text) for name, text in marks.items() if name.endswith(("rank-index", "-index"))), 0)
        rank = marks.get("elasticjob.dlrover/rank-index", index)
        if key.kind == "Pod":
            pods.append(PodState(key.name, f"uid-{key.name}", role, int(rank), PodPhase.RUNNING, ready=True))
        else:
            others[key] = ChildState(key, key.name, role, 0, body.get("spec", {}), body.get("data", {}))
    return OwnedObjects(tuple(pods), others)


FITS = [
    pytest.param(*elastic(2_000), id="an ElasticJob of many small workers"),
    pytest.param(*elastic(200, env=env(1, 32 << 10)), id="an ElasticJob of workers of 32 KiB"),
    pytest.param(*elastic(40, env=env(20_000)), id="an ElasticJob of few workers with 20,000 variables each"),
    pytest.param(*pytorch(1_200), id="a PyTorchJob, whose workers have a Service each"),
    pytest.param(*pytorch(40, ports=[{"name": f"p{at}", "containerPort": at + 1} for at in range(9_000)]), id="ports"),
    pytest.param(*volcano(60, 9, {"svc": [], "env": []}), id="a Volcano Job of many tasks with plugins"),
]


@pytest.mark.parametrize(("kind", "raw"), FITS)
def test_one_look_makes_one_portion_and_the_next_look_goes_on(kind, raw):
    owned, rounds, names = OwnedObjects(), 0, set()
    while True:
        outcome = reconcile(kind, raw, owned, NOW_S)
        creates = made_by(outcome)
        if not creates:
            break
        rounds += 1
        assert len(creates) <= MAX_CREATED_CHILDREN
        assert sum(map(size, creates[:-1])) <= MAX_CREATED_BYTES  # the last one may be over
        fresh = {children.child_key(each.body) for each in creates}
        assert not fresh & names
        names |= fresh
        owned = taken_in(owned, creates)
        assert (outcome.requeue_s == 0.0) is bool(made_by(reconcile(kind, raw, owned, NOW_S)))
    assert rounds > 1
    pods = sum(role.replicas for role in kind.read(raw).roles)
    assert sum(name.kind == "Pod" for name in names) == pods


TOO_LARGE = [
    pytest.param(*elastic(10_000, env=env(20_000)), id="an ElasticJob of 10,000 workers with 20,000 variables"),
    pytest.param(*volcano(1_000, 9, {"svc": [], "env": []}), id="a Volcano Job of 1,000 tasks that know one another"),
    pytest.param(
        *pytorch(2_000, ports=[{"name": f"p{at}", "containerPort": at + 1} for at in range(9_000)]),
        id="a PyTorchJob of 2,000 workers with 9,000 ports",
    ),
]


@pytest.mark.parametrize(("kind", "raw"), TOO_LARGE)
def test_a_job_of_too_many_bytes_is_told_so_with_bound_and_value(kind, raw):
    outcome = reconcile(kind, raw, OwnedObjects(), NOW_S)
    assert outcome.writes == ()
    (event,) = outcome.events
    assert (event.reason, event.warning) == (Reason.TOO_LARGE, True)
    assert f"above the limit of {CHILDREN_BYTES >> 20} MiB" in event.text
    assert "MiB of JSON" in event.text
    assert event.text in str(outcome.status)


def test_ten_thousand_workers_of_32_kib_are_not_too_large():
    kind, raw = elastic(10_000, env=env(1, 32 << 10))
    outcome = reconcile(kind, raw, OwnedObjects(), NOW_S)
    assert made_by(outcome)
    assert not [each for each in outcome.events if each.reason is Reason.TOO_LARGE]


def test_a_job_that_grew_too_large_keeps_its_pods():
    kind, raw = elastic(2)
    begun = reconcile(kind, raw, OwnedObjects(), NOW_S)
    grown = elastic(10_000, env=env(20_000))[1]
    outcome = reconcile(kind, {**grown, "status": begun.status}, OwnedObjects(), NOW_S)
    assert ([each.reason for each in outcome.events], outcome.writes) == ([Reason.TOO_LARGE], ())
    assert outcome.status is None
