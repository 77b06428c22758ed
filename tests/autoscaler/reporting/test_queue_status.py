"""The pages that a queue's owner reads with kubectl, and the annotations of pods."""

import asyncio
import json

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, state_of, world
from turnout.autoscaler.controller.status_writer import MAX_ANNOTATED_PODS, StatusWriter
from turnout.autoscaler.decide import decide
from turnout.autoscaler.reporting.queue_status import (
    MAX_JOBS,
    PodAnnotations,
    configmap_name,
    missing_annotations_of,
    queue_configmaps,
    worker_annotations,
)
from turnout.kube import labels
from turnout.kube.errors import Conflict, Forbidden, NotFound


def page(at):
    pages = queue_configmaps(at, decide(at, POLICY, NOW_S), (GPU,), dry_run=False)
    return {name: json.loads(data["status"]) for name, data in pages.items()}


def test_a_queues_page_tells_what_it_has_who_waits_and_to_whom_is_lent():
    lent = state_of(job("a", minimum=1, maximum=4, replicas=3), [0, 0, 0])
    pages = page(
        world([4], lent, state_of(job("bb", minimum=5, maximum=5)), queues={"q": {"limit": 8, "deserved": 4}})
    )["q"]
    assert pages["gpus"] == {"used": 3, "limit": 8, "deserved": 4, "free": 5}
    assert (pages["jobs"], pages["elasticWorkers"]) == ({"running": 1, "waiting": 1}, 2)
    assert pages["waiting"] == [{"job": "Job/ns/bb", "has": 0, "min": 5, "max": 5, "reason": "NeedsMore"}]
    assert [(line["job"], line["has"]) for line in pages["lent"]] == [("Job/ns/a", 3)]


def test_nothing_of_it_changes_while_nothing_else_does():
    at = world([4], state_of(job("a"), [0]))
    steps = decide(at, POLICY, NOW_S)
    assert queue_configmaps(at, steps, (GPU,), dry_run=True) == queue_configmaps(
        at, decide(at, POLICY, NOW_S + 5), (GPU,), dry_run=True
    )


def test_a_crowd_is_counted():
    crowd = [state_of(job(f"w{number:03}", minimum=9, maximum=9)) for number in range(MAX_JOBS + 7)]
    queue_page = page(world([4], *crowd))["q"]
    assert (len(queue_page["waiting"]), queue_page["waitingLeftOut"]) == (MAX_JOBS, 7)


@pytest.mark.parametrize("queue", ["team-a", "namespace/team-a", "Team_A", "ä", "a" * 300, "-"])
def test_every_queue_has_a_name_of_its_own_that_the_api_server_takes(queue):
    name = configmap_name(queue)
    assert name.startswith("turnout-queue-")
    assert len(name) <= 253
    assert name.replace("-", "").isalnum()
    assert name == name.lower()
    assert name.isascii()
    assert name != configmap_name(queue + "x")


@pytest.mark.contract("VE-28", "VE-32", "VE-33", "XD-05")
def test_the_first_goes_last_and_what_is_lent_goes_first():  # VE-32, VE-33
    first, second, elastic = (worker_annotations(index, 2) for index in range(3))
    order = [int(each[labels.VOLCANO_TASK_PRIORITY]) for each in (first, second, elastic)]
    assert order == sorted(order, reverse=True)
    assert len(set(order)) == 3
    assert [each[labels.VOLCANO_PREEMPTABLE] for each in (first, second, elastic)] == ["false", "false", "true"]
    assert [each[labels.SAFE_TO_EVICT] for each in (first, second, elastic)] == ["false", "false", "true"]


def test_only_what_is_missing_is_written_and_only_on_elastic_jobs():
    observed_job = state_of(job("a", minimum=1, replicas=2), [0, 0])
    names = [worker.name for worker in observed_job.workers]
    notes = {name: worker_annotations(at, 1) for at, name in enumerate(names)}
    assert list(missing_annotations_of(observed_job, notes)) == []
    del notes[names[1]][labels.SAFE_TO_EVICT]
    assert list(missing_annotations_of(observed_job, notes)) == [
        PodAnnotations("ns", names[1], ((labels.SAFE_TO_EVICT, "true"),))
    ]
    assert list(missing_annotations_of(state_of(job("a", maximum=1), [0]), {})) == []


class Store:
    """ConfigMaps and pods, as far as they are asked for."""

    def __init__(self):
        self.there, self.refuses, self.calls = {}, None, 0

    async def patch(self, path, body, content_type, field_manager):
        await self._call()
        if path not in self.there:
            raise NotFound("PATCH", path, 404, "gone")
        self.there[path] = body

    async def create(self, path, body):
        await self._call()
        name = f"{path}/{body['metadata']['name']}"
        if name in self.there:
            raise Conflict("POST", path, 409, "there")
        self.there[name] = body

    async def delete(self, path):
        await self._call()
        if self.there.pop(path, None) is None:
            raise NotFound("DELETE", path, 404, "gone")

    async def _call(self):
        self.calls += 1
        await asyncio.sleep(0)
        if self.refuses:
            raise self.refuses


def writer(store, pages, marks=()):
    return StatusWriter(store, "ns", None, lambda: pages, lambda: marks, lambda: True)


@pytest.mark.asyncio
async def test_a_page_is_written_when_it_changes_and_goes_with_its_queue():
    store, new_pages = Store(), {"q": {"status": "1"}}
    pages = writer(store, new_pages)
    await pages.write_changes()
    assert [body["data"] for body in store.there.values()] == [{"status": "1"}]
    calls = store.calls
    await pages.write_changes()
    assert store.calls == calls
    new_pages["q"] = {"status": "2"}
    await pages.write_changes()
    assert [body["data"] for body in store.there.values()] == [{"status": "2"}]
    del new_pages["q"]
    await pages.write_changes()
    assert store.there == {}


@pytest.mark.asyncio
async def test_what_is_refused_is_tried_again_and_stops_nobody(caplog):
    store, new_pages = Store(), {"q": {"status": "1"}}
    pages = writer(store, new_pages, [PodAnnotations("ns", "gone", (("a", "b"),))])
    store.refuses = Forbidden("PATCH", "/x", 403, "no right")
    with caplog.at_level("INFO"):
        await pages.write_changes()
    assert {"status_not_written", "pod_not_marked"} <= {record.msg for record in caplog.records}
    store.refuses = None
    await pages.write_changes()
    assert len(store.there) == 1


@pytest.mark.asyncio
async def test_of_many_marks_a_round_writes_only_so_many():
    store = Store()
    await writer(
        store, {}, [PodAnnotations("ns", str(number), (("a", "b"),)) for number in range(3 * MAX_ANNOTATED_PODS)]
    ).write_changes()
    assert store.calls == MAX_ANNOTATED_PODS
