"""The benchmark of the job controllers runs both on a cluster too small to measure, and counts what each has sent."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from hack.bench.controllers.audit import Audit, count_writes
from hack.bench.controllers.results import ControllerResults
from hack.bench.controllers.run import compare_controllers
from hack.bench.controllers.scene import WorkloadSize, jobs
from hack.bench.controllers.sides import ControllerUsage
from hack.bench.controllers.trials import ControllerTrial, IdleMeasurement
from hack.bench.controllers.watching import WatchedPods
from hack.controlplane.plane import ControlPlane

SIZE = WorkloadSize(jobs=3, workers=2, lost_pods=3, deleted_jobs=1, steady_jobs=5, steady_s=1.0, turns=2)


def line(agent, verb, resource, sub=""):
    return json.dumps({"verb": verb, "userAgent": agent, "objectRef": {"resource": resource, "subresource": sub}})


def test_requests_are_counted_by_their_sender_since_a_place(tmp_path):
    audit = Audit(tmp_path)
    log = tmp_path / "audit.log"
    log.write_text(line("turnout", "create", "pods") + "\n")
    at = audit.size_bytes()
    later = [line("turnout", "create", "pods"), line("turnout", "patch", "pytorchjobs", "status")]
    later += [line("kwok/1", "delete", "pods"), line("turnout", "list", "pods")]
    with log.open("a") as more:
        more.write("\n".join([*later, line("turnout", "create", "pods")[:20]]))
    counted = audit.count_since(at, "turnout")
    assert counted == {"create pods": 1, "patch pytorchjobs/status": 1, "list pods": 1}
    assert count_writes(counted) == 2


def test_a_log_that_is_not_there_yet_is_empty(tmp_path):
    assert Audit(tmp_path).size_bytes() == 0


def pod(type_, uid):
    return json.dumps({"type": type_, "object": {"metadata": {"name": "a-worker-0", "uid": uid}}}).encode()


@pytest.mark.asyncio
async def test_a_pod_is_replaced_when_another_of_its_name_is_seen():
    pods = WatchedPods()
    pods.note(pod("ADDED", "1"), 10.0)
    replacement = pods.replacement("a-worker-0")
    for at_s, event in enumerate([pod("MODIFIED", "1"), pod("DELETED", "1")], 11):
        pods.note(event, float(at_s))
        assert not replacement.done()
    assert pods.names() == []
    pods.note(pod("ADDED", "2"), 13.0)
    pods.note(pod("MODIFIED", "2"), 14.0)
    assert await replacement == 13.0


def trial(seconds, requests):
    return ControllerTrial(
        seconds, ControllerUsage(seconds / 2, 10 * seconds), Counter({"create pods": requests}), [0.1], seconds
    )


def test_a_ratio_is_the_median_of_those_within_repetitions():
    rests = IdleMeasurement(1.0, 0.2, 50.0, 2.0, 0, 1), IdleMeasurement(1.0, 0.01, 50.0, 12.0, 0, 0)
    theirs, ours = [trial(4, 8), trial(40, 8), trial(4, 8)], [trial(2, 4), trial(20, 4), trial(8, 16)]
    deleted = [(0.1, 0.2), (0.1, 0.08), (0.2, 0.1)]
    outcome = ControllerResults(SIZE, theirs, ours, *rests, deleted).outcome(quick=True)
    assert outcome.figures["ms from a job's deletion until its children are gone: ratio"] == pytest.approx(0.8)
    assert outcome.figures["seconds until all are Running: ratio"] == 0.5
    assert outcome.figures["requests a job: ratio"] == 0.5
    assert outcome.figures["CPU seconds: Training Operator"] == 2
    missed = [target.name for target in outcome.targets if not target.is_met]
    assert missed == ["5 jobs at rest: restarted, caught up after, s"]


def test_jobs_name_their_nodes_so_that_no_scheduler_is_needed():
    raw_jobs = jobs(20, 2)
    nodes = {job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeName"] for job in raw_jobs}
    assert len({job["metadata"]["name"] for job in raw_jobs}) == 20
    assert nodes == {f"node-{at:03d}" for at in range(16)}


@pytest.mark.real
@pytest.mark.long  # what it measures runs in `make bench`
@pytest.mark.asyncio
async def test_both_controllers_run_all_jobs_and_leave_nothing_of_them(tmp_path):
    audit = Audit(tmp_path)
    with ControlPlane(apiserver_flags=audit.flags()) as plane:
        found = await compare_controllers(plane, audit, SIZE)
        async with plane.api() as api:
            left = [len((await api.get(f"/api/v1/namespaces/bench/{kind}"))["items"]) for kind in ("pods", "services")]
    for one in (*found.theirs, *found.ours):
        assert one.requests["create pods"] == one.requests["create services"] == SIZE.pods
        assert len(one.lost_s) == 3
        assert all(took > 0 for took in (one.running_s, *one.lost_s, one.used.peak_mib))
    assert len(found.deleted) == SIZE.turns
    assert all(took > 0 for turn in found.deleted for took in turn)
    assert found.our_rest.writes_at_rest == found.our_rest.writes_after_restart == 0
    assert left == [SIZE.steady_jobs, SIZE.steady_jobs]  # those at rest alone
