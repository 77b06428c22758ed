"""Queues in their dialects, and what each may have: facts/autoscaling.md 6."""

import pytest

from jobs.queue import QueueSpec, limits, read_resource_quota, read_volcano

GPU = "nvidia.com/gpu"
TOTAL = {GPU: 100}


def volcano(name="q", **spec):
    return {"metadata": {"name": name}, "spec": spec}


def test_a_volcano_queue_is_read():
    raw = volcano(
        capability={GPU: "8", "cpu": "96"}, guarantee={"resource": {GPU: 2}}, deserved={GPU: "4"}, parent="root"
    )
    queue = read_volcano(raw)
    assert (queue.capability[GPU], queue.capability["cpu"]) == (8, 96_000)
    assert (queue.guarantee, queue.deserved, queue.parent, queue.open) == ({GPU: 2}, {GPU: 4}, "root", True)
    assert not read_volcano({**raw, "status": {"state": "Closing"}}).open


def test_an_amount_that_cannot_be_read_is_told_and_counts_as_absent():
    queue = read_volcano(volcano(capability={GPU: "lots"}))
    assert queue.capability == {}
    assert "spec.capability.nvidia.com/gpu" in queue.faults[0]


def test_a_namespaces_quota_is_a_queue():
    raw = {
        "metadata": {"name": "x", "namespace": "team"},
        "spec": {"hard": {f"requests.{GPU}": "4", "limits.cpu": "9"}},
    }
    queue = read_resource_quota(raw)
    assert (queue.name, queue.capability) == ("namespace/team", {GPU: 4})


@pytest.mark.parametrize(
    ("queues", "found"),
    [
        pytest.param([QueueSpec("a", {GPU: 8})], {"a": 8}, id="a capability"),
        pytest.param([QueueSpec("a")], {"a": None}, id="nothing said is no limit"),
        pytest.param(
            [QueueSpec("a"), QueueSpec("b", guarantee={GPU: 30})],
            {"a": 70, "b": 100},
            id="what is guaranteed to others is not there",
        ),
        pytest.param(
            [QueueSpec("a", {GPU: 90}), QueueSpec("b", guarantee={GPU: 30})],
            {"a": 70, "b": 100},
            id="the smaller of both",
        ),
        pytest.param(
            [QueueSpec("a", {GPU: 50}, parent="p"), QueueSpec("p", {GPU: 20})],
            {"a": 20, "p": 20},
            id="a parent's limit holds for its children",
        ),
        pytest.param(
            [QueueSpec("a", {GPU: 5}, parent="b"), QueueSpec("b", {GPU: 9}, parent="a")],
            {"a": 5, "b": 5},
            id="parents in a circle end",
        ),
    ],
)
def test_what_a_queue_may_have(queues, found):
    assert {name: told.get(GPU) for name, told in limits(queues, TOTAL).items()} == found
