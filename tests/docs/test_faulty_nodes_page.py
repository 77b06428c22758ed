"""docs/faulty-nodes.md: its commands, typed on a local cluster with one faulty node."""

from datetime import UTC, datetime

import msgspec
import pytest

from hack.lint.code_blocks import run_by
from tests.cli.verbs.transcripts import commands, places, still, typed
from turnout.autoscaler.node_faults.model import FaultState, Proof, Record
from turnout.kube import labels
from turnout.simulator.local_cluster import local_cluster

SINCE = datetime(2026, 11, 27, 8, 0, tzinfo=UTC)
PROOF = Proof(
    pod="team-a/bert-worker-3", owner="u1", at=SINCE, cause="network_failed", why="failed with worker-1", by="worker-0"
)
RECORD = Record(FaultState.TAINTED, SINCE, SINCE, SINCE.replace(hour=9), 1, (PROOF,))
TAINT = {"key": labels.FAULTY, "value": "faulty", "effect": "NoSchedule"}


@pytest.mark.asyncio
async def test_the_page_shows_a_faulty_node_and_frees_it(tmp_path):
    (block,) = run_by("tests/docs/test_faulty_nodes_page.py::test_the_page_shows_a_faulty_node_and_frees_it")
    config = tmp_path / "kubeconfig"
    async with local_cluster(config) as cluster:
        await cluster.add_nodes(places(), 8)
        notes = {labels.NODE_RECORD: msgspec.json.encode(RECORD).decode()}
        change = {"metadata": {"annotations": notes}, "spec": {"taints": [TAINT]}}
        await cluster.api.call("PATCH", "/api/v1/nodes/gpu-7", change, "application/merge-patch+json")
        for command, printed in commands([block]):
            assert still(await typed(command, config)) == still(printed)
