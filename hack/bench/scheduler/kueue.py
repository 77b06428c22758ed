"""Kueue's own manager on the benchmark's control plane: find it, start it, send it a stream, see each gang bound.

kueue_objects.py has its objects. It runs outside the cluster, as its administrator; the API server reaches its webhooks
at the address of their Service, which is one of this machine's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.bench.placement import streams
from hack.bench.scheduler import kueue_objects
from hack.bench.scheduler.cluster import PODS, build, switches_of
from hack.bench.scheduler.stream import GangFunctions, StreamResult, create_gang, follow, patches
from hack.controlplane.api import Api
from hack.controlplane.errors import ApiError, NotReady
from hack.controlplane.plane import ControlPlane, free_ports

FOLDER = "TURNOUT_PEERS"
MANAGER, MANIFESTS = "kueue-manager", "kueue-manifests.yaml"
_WITHIN_S = 60.0
_LOOK_EACH_S = 0.1
_API = f"/apis/{kueue_objects.VERSION}"
_SYSTEM = f"/api/v1/namespaces/{kueue_objects.NAMESPACE}"
_SAID = re.compile(r'"gitVersion":\s*"([^"]+)"')  # in the first lines of its log


@dataclass(frozen=True, slots=True)
class KueueRelease:
    """A manager of Kueue, and the manifests of its release."""

    manager: Path
    manifests: Path


@dataclass(frozen=True, slots=True)
class MissingKueue:
    """Kueue's manager is missing. reason: why, as text."""

    reason: str


def find(environ: Mapping[str, str]) -> KueueRelease | MissingKueue:
    """Return the paths of Kueue's manager in the folder that $TURNOUT_PEERS names; MissingKueue with the reason if it
    is missing.

    environ: the environment variables.
    """
    folder = environ.get(FOLDER)
    if not folder:
        return MissingKueue(f"{FOLDER} names no folder with {MANAGER}")
    peer = KueueRelease(Path(folder) / MANAGER, Path(folder) / MANIFESTS)
    lacks = [each.name for each in (peer.manager, peer.manifests) if not each.is_file()]
    return MissingKueue(f"{folder} has no {' and no '.join(lacks)}") if lacks else peer


async def send(peer: KueueRelease, events: Sequence[int], seed: int, apart_s: float) -> tuple[str, StreamResult]:
    """Send one stream to a new control plane on which Kueue places gangs. Return (the manager's version, results).

    apart_s: seconds between two pods. A gang leaves when all its pods have succeeded, as Kueue counts it; the next
    comes when they are gone. peer: the manager to start. events: as `streams.generate` returns them. seed: of the order
    of a gang's pods.
    """
    tree, rng, found = streams.fabric(), random.Random(seed), StreamResult()
    gang_functions = GangFunctions(kueue_objects.gang_pod, _leave)
    plane = await asyncio.to_thread(lambda: ControlPlane().start())
    try:
        async with plane.api() as api:
            await build(api, switches_of(tree), lambda host: kueue_objects.node_labels(tree, host))
            await asyncio.to_thread(plane.start_scheduler)
            await _start(plane, api, peer)
            await _open_queue(api)
            await create_gang(api, "warm", 1, None, 0.0, gang_functions.pod)
            await _leave(api, "warm", 1)
            before = await patches(api)
            await follow(api, events, rng, apart_s, gang_functions, found)
            found.patches = await patches(api) - before - kueue_objects.count_departed_pods(events)
            return version(plane.logs(MANAGER)), found
    finally:
        await asyncio.to_thread(plane.stop)


def version(log: str) -> str:
    """Return the manager's version by its log, or "of an unknown version"."""
    match = _SAID.search(log)
    return match[1] if match else "of an unknown version"


async def _start(plane: ControlPlane, api: Api, peer: KueueRelease) -> None:
    """Install what the manager needs, start it, and wait until it is ready. Raises NotReady otherwise."""
    release = await asyncio.to_thread(lambda: list(yaml.load_all(peer.manifests.read_text(), yaml.CSafeLoader)))
    webhook, health = free_ports(2)
    for each in kueue_objects.objects_of_release(release, webhook):
        await api.create(each)
    service = await api.get(f"{_SYSTEM}/services/{kueue_objects.SERVICE}")
    certificates, settings = plane.folder / "kueue-certificates", plane.folder / "kueue.yaml"
    certificates.mkdir()
    probes = f"127.0.0.1:{health}"
    host = service["spec"]["clusterIP"]
    settings.write_text(json.dumps(kueue_objects.settings(release, host, webhook, probes, str(certificates))))
    argv = [str(peer.manager), f"--config={settings}", f"--kubeconfig={plane.kubeconfig}", "--zap-log-level=info"]
    await asyncio.to_thread(plane.start_program, MANAGER, argv)
    await _mount(plane, api, certificates)
    await asyncio.to_thread(plane.wait_ready, MANAGER, f"http://{probes}/readyz")


async def _mount(plane: ControlPlane, api: Api, certificates: Path) -> None:
    """Wait until the manager has filled its Secret, and copy its content to where the manager reads it: a volume's
    work.

    certificates: the folder from which the manager reads. Raises NotReady if the Secret is empty after _WITHIN_S.
    """
    until_s = time.monotonic() + _WITHIN_S
    while time.monotonic() < until_s:
        secret = await api.get(f"{_SYSTEM}/secrets/{kueue_objects.SECRET}")
        if secret.get("data"):
            for name, content in secret["data"].items():
                (certificates / name).write_bytes(base64.b64decode(content))
            return
        await asyncio.sleep(_LOOK_EACH_S)
    raise NotReady(MANAGER, f"left its Secret empty for {_WITHIN_S:.0f} s", plane.logs(MANAGER)[-2000:])


async def _open_queue(api: Api) -> None:
    """Create the queue and wait until it is active.

    Creation is repeated for _WITHIN_S while the API server answers 500, because it may not know the authority of the
    webhooks' certificates yet. Raises ApiError after that or for another refusal, and TimeoutError if the queue does
    not become active.
    """
    until_s = time.monotonic() + _WITHIN_S
    for resource, body in kueue_objects.queues(streams.NODES * 8):
        while True:
            try:
                await api.call("POST", f"{_API}/{resource}", body)
                break
            except ApiError as error:
                if error.status != 500 or time.monotonic() > until_s:
                    raise
                await asyncio.sleep(_LOOK_EACH_S)
    for resource in ("clusterqueues", "namespaces/default/localqueues"):
        await api.until(f"{_API}/{resource}", lambda found: all(map(_holds("Active"), found)), _WITHIN_S)


async def _leave(api: Api, gang: str, size: int) -> None:
    """Let all `size` pods of a gang succeed, wait until Kueue has released their quota, and delete them.

    Raises TimeoutError if a wait takes longer than _WITHIN_S.
    """
    pods = [f"{PODS}/{gang}-{at}" for at in range(size)]
    await asyncio.gather(*(api.patch(f"{pod}/status", {"status": {"phase": "Succeeded"}}) for pod in pods))
    workload = f"{_API}/namespaces/default/workloads?fieldSelector=metadata.name%3D{gang}"
    await api.until(workload, lambda found: bool(found) and _holds("Finished")(found[0]), _WITHIN_S)
    await asyncio.gather(*(api.delete(pod) for pod in pods))
    await api.until(f"{PODS}?labelSelector=gang%3D{gang}", lambda found: not found, _WITHIN_S)


def _holds(kind: str) -> Any:
    """Return a function that is True for an object with this condition. kind: of the condition."""

    def holds(body: Mapping[str, Any]) -> bool:
        conditions = body.get("status", {}).get("conditions") or ()
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    return holds
