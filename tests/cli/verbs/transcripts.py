"""The transcripts of docs/cli.md: commands typed on one local cluster, and what they print.

`python -m tests.cli.verbs.transcripts` types them all again and writes the page anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

from tests.autoscaler.local_cluster import Cluster, manifest
from turnout.cli.__main__ import main
from turnout.kube import labels
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import NodeSpec, map_text
from turnout.simulator.local_cluster import local_cluster

PAGE = Path(__file__).parents[3] / "docs/cli.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
GPU = "nvidia.com/gpu"
NAMESPACE = "team-a"
JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
QUEUE = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
# Job: queue, min, max, GPUs of a worker, and the nodes of its workers.
RUN = {
    "bert": ("research", 2, 8, 2, ("gpu-1", "gpu-1", "gpu-2", "gpu-2", "gpu-3")),
    "gpt": ("prod", 4, 4, 4, ("gpu-4", "gpu-5", "gpu-6", "gpu-7")),
    "llama": ("research", 4, 4, 2, ("", "", "", "")),
}
_ALONE = ("simulate", "completion")  # verbs that ask no cluster


def places():
    """Eight nodes under four leaves and two spines."""
    return [
        NodeSpec(f"gpu-{at}", f"10.0.0.{at}", (f"spine-{(at + 3) // 4}", f"leaf-{(at + 1) // 2}")) for at in range(1, 9)
    ]


@contextlib.asynccontextmanager
async def scene(folder):
    """A queue that lends, a job that waits, a map with a host that is gone; an autoscaler that has told of it."""
    config = folder / "kubeconfig"
    async with local_cluster(config, pace=Pace(pull_s=0.01, stop_s=0.01)) as local:
        nodes = places()
        await local.add_nodes(nodes, 4)
        api = local.api
        await api.call(
            "PATCH", "/api/v1/nodes/gpu-8", {"spec": {"unschedulable": True}}, "application/merge-patch+json"
        )
        for name in ("turnout-system", NAMESPACE):
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        text = map_text([*nodes, NodeSpec("gone", "10.0.0.9", ("spine-2", "leaf-4"))])
        body = {"metadata": {"name": "node-topology-config"}, "data": {"topology_config": text}}
        await api.call("POST", "/api/v1/namespaces/turnout-system/configmaps", body)
        for name, maximum, own in (("research", 24, 12), ("prod", 24, 16)):
            spec = {"capability": {GPU: str(maximum)}, "deserved": {GPU: str(own)}}
            await api.call("POST", QUEUES, {**QUEUE, "metadata": {"name": name}, "spec": spec})
        for name, phase in RUN.items():
            await _submit(api, name, *phase)
        cluster = Cluster(local, config)
        try:
            await cluster.autoscaler()
            await _events_of(api, "llama")
            yield config
        finally:
            await cluster.end()


async def _submit(api, name, queue, minimum, maximum, gpus, nodes):
    notes = {}
    if maximum > minimum:
        notes = {
            labels.WROTE_WORKERS: str(len(nodes)),
            labels.SUBMITTED_WORKERS: str(minimum),
            labels.RESIZED_AT: "2026-01-01T00:00:00Z",
            labels.GAINED: "5400",
        }
    body = manifest(name, minimum, maximum, len(nodes), gpus, notes)
    body["spec"]["queue"] = queue
    job = await api.call("POST", JOBS, body)
    meta, runs = job["metadata"], sum(map(bool, nodes))
    status = {"state": {"phase": "Running" if runs else "Pending"}, "running": runs}
    await api.call("PATCH", f"{JOBS}/{name}/status", {"status": status}, "application/merge-patch+json")
    owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": name, "uid": meta["uid"], "controller": True}
    for index, node in enumerate(nodes):
        marks = {
            labels.VOLCANO_JOB: name,
            labels.VOLCANO_TASK_SPEC: "w",
            labels.VOLCANO_TASK_INDEX: str(index),
            "volcano.sh/job-namespace": NAMESPACE,
        }
        asks = {GPU: str(gpus)}
        spec = {
            "schedulerName": "volcano",
            "containers": [{"name": "main", "image": "i", "resources": {"limits": asks, "requests": asks}}],
            **({"nodeName": node} if node else {}),
        }
        job_spec = {
            "name": f"{name}-w-{index}",
            "labels": marks,
            "annotations": {labels.VOLCANO_GROUP: name},
            "ownerReferences": [owner],
        }
        await api.call("POST", PODS, {"metadata": job_spec, "spec": spec})


async def _events_of(api, name):
    """Wait for an Event on a job."""
    async with asyncio.timeout(30):
        async for word, now in api.changes(f"/api/v1/namespaces/{NAMESPACE}/events"):
            if word != "SYNCED" and now.obj["involvedObject"]["name"] == name:
                return


def commands(shown):
    """Each command of the blocks of the page, with what the page says that it prints."""
    found = []
    for block in shown:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


async def typed(command, config):
    """Type a command on the cluster. Return what it prints; an exit code other than 0 is shown as a prompt would."""
    _, *argv = shlex.split(command)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        more = [] if argv[0] in _ALONE else ["--kubeconfig", str(config)]
        code = await asyncio.to_thread(main, [*argv, *more])
    return out.getvalue() + (f"(exit {int(code)})\n" if code else "")


def still(printed):
    """A text without what another run tells otherwise: moments, spans of time, and the width of columns."""
    printed = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MOMENT", printed)
    printed = re.sub(r"-?\b\d+(\.\d+)? (s|min|h|days)\b", "SPAN", printed)
    printed = re.sub(r"\b\d+[dhms](\d+[hms])?\b", "AGE", printed)
    return [" ".join(line.split()) for line in printed.rstrip("\n").split("\n")]


async def page_text(page):
    """The page with every command typed anew."""
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder)) as config:
            parts, last = [], 0
            for block in BLOCK.finditer(page):
                texts = []
                for part in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]:
                    command = part.partition("\n")[0]
                    texts.append(f"$ {command}\n{await typed(command, config)}")
                parts += [page[last : block.start()], "```console\n", "".join(texts), "```"]
                last = block.end()
    return "".join([*parts, page[last:]])


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(page_text(PAGE.read_text())))
    sys.exit(0)
