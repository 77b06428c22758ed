"""ColossalAIJobs of the process cluster: what stands for their images, and how their phases and pods are followed."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import groupby

from tests.e2e.controllers.installed import ROOT
from tests.e2e.launcher.operated import PODS

JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/default/colossalaijobs"
SCRIPTS = ROOT / "tests/e2e/controllers/scripts"
RUNNER = ROOT / ".venv/colossalai-cli"
PATH = f"{RUNNER}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"
RUNS = [{"name": "PATH", "value": PATH}, {"name": "PYTHONPATH", "value": str(RUNNER)}]  # as the launcher's image would


def with_sshds_folder(raw, env=()):
    """Give a job's workers /run/sshd, which an image with sshd has, and variables."""
    pod = raw["spec"]["worker"]["template"]["spec"]
    (container,) = pod["containers"]
    container["env"] = [*container.get("env", ()), *env]
    container["volumeMounts"] = [*container.get("volumeMounts", ()), {"name": "run", "mountPath": "/run/sshd"}]
    pod["volumes"] = [*pod.get("volumes", ()), {"name": "run", "emptyDir": {}}]
    return raw


async def phases(api, name, last):
    """Follow a job's phase until it is this one, or the job has failed; each that was seen, in order."""
    records = []
    async for _, now in api.changes(JOBS):
        if now.obj.get("metadata", {}).get("name") == name and (status := now.obj.get("status")):
            records.append(status["phase"])
            if status["phase"] in (last, "Failed"):
                return [phase for phase, _ in groupby(records)]
    raise AssertionError("a watch does not end")


async def names(api, job):
    """Give the names of a job's pods that are there now."""
    found = (await api.call("GET", PODS))["items"]
    return sorted(pod["metadata"]["name"] for pod in found if pod["metadata"]["name"].startswith(f"{job}-"))


async def wait_for_ends(world, pods, waiting):
    """Wait, but not for ever; what pods have written is told then."""
    try:
        async with asyncio.timeout(60):
            return await waiting
    except TimeoutError:
        jobs = (await world.api.call("GET", JOBS))["items"]
        statuses = [json.dumps(each.get("status")) for each in jobs]
        raise AssertionError("\n".join([*statuses, *map(world.log, pods)])) from None
