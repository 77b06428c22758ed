"""States of a small cluster for the tests of the page."""

from turnout.cli.page.cluster_state import ClusterState, HostState, PlacedPod
from turnout.cli.page.messages import DecisionItem, JobItem, QueueItem
from turnout.topology.fabric import build
from turnout.topology.model import MapEntry

MAP = [MapEntry(f"n{at}", ("spine", f"leaf-{at // 2}"), at + 1) for at in range(4)]


def job(name, state="running", **more):
    namespace = name.split("/")[1]
    fields = {
        "job": name, "kind": name.split("/")[0], "namespace": namespace, "name": name.split("/")[2],
        "queue": f"queue-{namespace}", "state": state, "workers": 2, "min_workers": 1, "max_workers": 4,
        "gpus_per_worker": 8, "gpus": 16, "elastic_gpus": 8, "since_at_s": 100.0, "reason": "AtMax", "evidence": "e",
        "next_step": "n",
    }  # fmt: skip
    return JobItem(**{**fields, **more})


def decision(name, at_s=100.0, reason="IdleRoom", glyph="grow"):
    return DecisionItem(
        at_s=at_s, times=1, component="turnout-autoscaler", reason=reason, glyph=glyph, object=name,
        namespace=name.split("/")[1], queue="q", sentence="It grows.",
    )  # fmt: skip


A, B = "Job/team-a/bert", "Job/team-b/ocr"


def state_of(**more):
    """Two leaf switches of two nodes each, and a node off the map. Two jobs of two teams run on three nodes."""
    fabric = build(MAP)
    hosts = [
        HostState(f"n{at}", ("spine", f"leaf-{at // 2}"), 8, "ready", "", fabric.id_of_host[f"n{at}"])
        for at in range(4)
    ]
    hosts.append(HostState("stray", (), 8, "ready", ""))
    fields = {
        "observed_at_s": 200.0, "version": 7, "hosts": tuple(hosts), "fabric": fabric,
        "pods": (
            PlacedPod("bert-0", A, "queue-team-a", "n0", 8, False, 0),
            PlacedPod("bert-1", A, "queue-team-a", "n2", 8, True, 1),
            PlacedPod("ocr-0", B, "queue-team-b", "n1", 4, False, None),
        ),
        "jobs": (job("Job/team-a/waits", "waiting", gpus=0, elastic_gpus=0, workers=0), job(A), job(B, gpus=4)),
        "queues": (QueueItem("queue-team-a", quota_gpus=8, used_gpus=16), QueueItem("queue-team-b", quota_gpus=16)),
        "queue_namespaces": {"queue-team-a": ("team-a",), "queue-team-b": ("team-b",)},
        "decisions": (decision(A), decision(B, 90.0)),
    }  # fmt: skip
    return ClusterState(**{**fields, **more})
