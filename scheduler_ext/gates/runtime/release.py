"""Take our gate from every pod at once, without a plan: for the end of an installation, and when nobody places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from turnout.kube import labels
from turnout.kube.errors import CallError, Conflict, NotFound
from turnout.kube.objects import Pod
from turnout.kube.times import unix_s
from turnout.scheduler_ext.model import GatedPod, Lift, LiftReason
from turnout.scheduler_ext.wire.pod_messages import gated_pod, lift_patch

MAX_PATCHES = 32
MAX_TRIES = 4  # of a pod that changes meanwhile


class _List(msgspec.Struct):
    items: list[Pod] = []


_pods, _pod = msgspec.json.Decoder(_List), msgspec.json.Decoder(Pod)


class PodCalls(Protocol):
    """The part of a Client that is needed here."""

    def pages(self, path: str, params: dict[str, Any] | None = None) -> AsyncIterator[bytes]:
        """Yield each page of a list."""

    async def get(self, path: str) -> bytes:
        """Return a pod."""

    async def patch(self, path: str, body: dict[str, Any], *, field_manager: str) -> bytes:
        """Patch a pod and return the result."""


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The pods that were let go, as namespace/name, and why others were not."""

    released_pods: tuple[str, ...]
    failures: tuple[tuple[str, str], ...] = ()


async def release_all(pods: PodCalls, namespace: str, older_s: float, wall_s: float) -> ReleaseResult:
    """Lift our gate from every waiting pod. Raises CallError when pods cannot be listed.

    namespace: "" for all. older_s: pods created less than so many seconds ago stay gated.
    """
    gated_pods = [gated async for _, gated in list_gated_pods(pods, namespace, older_s, wall_s)]
    room = asyncio.Semaphore(MAX_PATCHES)

    async def lift_one(pod: GatedPod) -> str | None:
        async with room:
            return await _lift(pods, pod)

    faults = await asyncio.gather(*map(lift_one, gated_pods))
    outcomes = [(f"{pod.namespace}/{pod.name}", fault) for pod, fault in zip(gated_pods, faults, strict=True)]
    return ReleaseResult(
        tuple(name for name, fault in outcomes if fault is None),
        tuple((name, fault) for name, fault in outcomes if fault),
    )


async def list_gated_pods(
    pods: PodCalls, namespace: str, older_s: float, wall_s: float
) -> AsyncIterator[tuple[Pod, GatedPod]]:
    """Yield the waiting pods behind our gate that are old enough. Raises CallError when pods cannot be listed."""
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    async for page in pods.pages(path, {"fieldSelector": "spec.nodeName="}):
        for pod in _pods.decode(page).items:
            gated = gated_pod(pod)
            if gated is not None and wall_s - (unix_s(gated.created) or 0.0) >= older_s:
                yield pod, gated


async def _lift(pods: PodCalls, pod: GatedPod) -> str | None:
    """Lift one gate. Returns why it failed, None when it is gone."""
    path, fault = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", ""
    for _ in range(MAX_TRIES):
        try:
            await pods.patch(
                path, lift_patch(Lift(pod, LiftReason.RELEASED)), field_manager=labels.FIELD_MANAGER_NOMINATOR
            )
            return None
        except NotFound:
            return None
        except Conflict as error:
            fault = str(error)
        except CallError as error:
            return str(error)
        try:
            current = gated_pod(_pod.decode(await pods.get(path)))
        except NotFound:
            return None
        except CallError as error:
            return str(error)
        if current is None or current.uid != pod.uid:
            return None
        pod = current
    return fault
