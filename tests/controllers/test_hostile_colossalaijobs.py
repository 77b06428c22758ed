"""Laws of ColossalAIJobs: whatever an owner writes is read or refused, and a status is written once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers.jobs import NOW_S
from tests.controllers.test_colossalaijob import ALL, DEBUG, PAUSE, READ, after, job, launcher, looked, worker
from tests.controllers.test_hostile_jobs import JSON
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.kinds.colossalaijob import COLOSSALAIJOB
from turnout.controllers.model import OwnedObjects, PodPhase
from turnout.controllers.reconcile import reconcile

FIELDS = ("ssh", "launcher", "worker", "runMode", "scheduler", "runPolicy")
INNER = ("env", "resources", "volumeMounts", "ports", "command", "name", "image", "args")


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.sampled_from(FIELDS), JSON, st.sampled_from(INNER), JSON, st.dictionaries(st.sampled_from(["conditions"]), JSON)
)
def test_whatever_an_owner_writes_is_read_or_refused(field, value, inner, data, status):
    for raw in (
        {**job(), "spec": {**job()["spec"], field: value}},
        job(container={inner: data}),
        job(launcher={inner: data}),
        job(worker={**READ["spec"]["worker"], "command": data, "torchArgs": value}),
        {**job(), "status": status},
    ):
        reconcile(COLOSSALAIJOB, raw, OwnedObjects(ALL), NOW_S)


@pytest.mark.parametrize("type_", [[], {}, None, 7], ids=["a list", "an object", "null", "a number"])
def test_a_condition_whose_type_is_no_text_is_passed_over(type_):
    raw = after(job(status={"conditions": [{"type": type_, "status": "True"}]}), *ALL)
    assert raw["status"]["phase"] == "Running"


PODS = st.tuples(st.sampled_from(list(PodPhase)), st.booleans(), st.integers(0, 1))


@settings(max_examples=scaled(200), deadline=None)
@given(st.sampled_from([{}, DEBUG, PAUSE]), PODS, PODS, PODS)
def test_a_status_once_written_is_not_written_again(mode, lead, first, second):
    followers = first, second
    pods = [launcher(lead[0], deleting=lead[1], restarts=lead[2])]
    pods += [
        worker(at, phase, deleting=is_leaving, restarts=restarts)
        for at, (phase, is_leaving, restarts) in enumerate(followers)
    ]
    raw = job(runMode=mode)
    for _ in range(3):
        raw = after(raw, *pods)
    assert looked(raw, *pods).status is None
