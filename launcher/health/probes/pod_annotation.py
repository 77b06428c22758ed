"""Writes a check's finding about this node on the worker's own pod, with the pod's service account.

The pod's token names the pod; it is bound to the pod and dies with it. Readers of the finding learn the pod's node from
the API server.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from turnout.launcher.coordinator_messages import Judged, NodeResult
from turnout.launcher.errors import BadSettings
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.probe_messages import Report

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
WITHIN_S = 10.0  # seconds; a faulty worker leaves and does not wait longer for the API server
RETRY_S = 1.0
SPREAD_S = 0.005  # seconds for each member, so that thousands do not write at the same moment
_MANAGER = "turnout-run"


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod of this worker. uid: "" if unknown."""

    namespace: str
    name: str
    uid: str = ""


class Pods(Protocol):
    """The part of turnout.kube.client.api_client.Client that this module uses."""

    async def patch(self, path: str, body: Any, *, field_manager: str, deadline_s: float) -> bytes:
        """Patch the pod and return it as JSON.

        path: of the pod. body: a merge patch. deadline_s: seconds for the call with its retries. Raises CallError if
        the API server refuses the patch or does not answer in time.
        """

    async def close(self) -> None:
        """Close its connections."""


def own_pod(environ: Mapping[str, str], token: Path = TOKEN) -> PodIdentity:
    """Return this worker's pod by its service account's token, else by POD_NAMESPACE, POD_NAME and POD_UID.

    environ: has these variables; POD_UID may be missing. token: the token's file. Raises BadSettings if neither names
    the pod, and if the Kubernetes library is not installed.
    """
    if find_spec("kubernetes") is None:
        raise BadSettings("--node-verdicts needs pip install 'turnout[kubernetes]'")
    if (bound_pod := _pod_of_token(token)) is not None:
        return bound_pod
    namespace, name = environ.get("POD_NAMESPACE", ""), environ.get("POD_NAME", "")
    if not (namespace and name):
        raise BadSettings(
            "--node-verdicts does not know its own pod: give the pod its service account's token "
            "(automountServiceAccountToken: true), or POD_NAMESPACE and POD_NAME by the downward API"
        )
    return PodIdentity(namespace, name, environ.get("POD_UID", ""))


def _pod_of_token(token: Path) -> PodIdentity | None:
    """Return the pod that a service account token names, without checking its signature.

    token: the token's file. None if it does not exist or names no pod.
    """
    try:
        body = token.read_text().split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["kubernetes.io"]
        return PodIdentity(str(claims["namespace"]), str(claims["pod"]["name"]), str(claims["pod"]["uid"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, binascii.Error):
        return None


class OwnPod:
    """Writes check results as an annotation of one agent's pod. A new result cancels the write of an older one.

    node: the node's name, "" if unknown. kubeconfig: None for the pod's own account, else a file. again_s: seconds
    between two attempts.
    """

    def __init__(
        self, pod: PodIdentity, node: str, log_event: EventLog, kubeconfig: str | None = None, again_s: float = RETRY_S
    ) -> None:
        self._pod, self._node, self._log_event = pod, node, log_event
        self._kubeconfig, self._again_s = kubeconfig, again_s
        self._task: asyncio.Task[None] | None = None

    def write_finding(self, finding: Judged, report: Report) -> None:
        """Write this finding in place of earlier ones. report: what this node measured last."""
        before, self._task = self._task, None
        if before is not None:
            before.cancel()
        self._task = asyncio.get_running_loop().create_task(self._write(finding, report))

    async def close(self) -> None:
        """Wait until the current write is done or its time is up."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _write(self, finding: Judged, report: Report) -> None:
        """Write a finding as an annotation of this pod, within WITHIN_S seconds.

        A healthy node waits a random time first, so that not all write at once. The result is logged.
        """
        if finding.result is NodeResult.FINE:
            await asyncio.sleep(random.uniform(0, SPREAD_S * finding.members))
        name = f"{self._pod.namespace}/{self._pod.name}"
        body, (client, errors) = await asyncio.to_thread(lambda: (self._body(finding, report), _client()))
        try:
            async with asyncio.timeout(WITHIN_S):
                fault = await self._patch(body, client, errors)
        except TimeoutError:
            fault = f"not within {WITHIN_S:g} s"
        fields = {"pod": name, "found": finding.result.value, "cause": finding.cause}
        if fault:
            self._log_event("verdict_not_written", {**fields, "detail": fault})
        else:
            self._log_event("verdict_written", fields)

    async def _patch(self, body: dict[str, Any], client: Any, errors: Any) -> str:
        """Patch the pod, and retry until the API server answers. Return the reason of a failure, "" for success.

        client: the class of the API client. errors: the module turnout.kube.errors.
        """
        try:
            connected_client: Pods = await client.open(self._kubeconfig)
        except errors.BadKubeconfig as error:
            return str(error)
        try:
            while True:
                try:
                    path = f"/api/v1/namespaces/{self._pod.namespace}/pods/{self._pod.name}"
                    await connected_client.patch(path, body, field_manager=_MANAGER, deadline_s=WITHIN_S / 3)
                    return ""
                except errors.Forbidden as error:
                    return f"{error.message[:300]}; apply deploy/manifests/launcher/job-verdicts.yaml for its account"
                except (errors.NotFound, errors.Conflict, errors.Rejected, errors.Unauthorised) as error:
                    return f"{error.message[:300]}"  # another pod by now, or none
                except errors.CallError:
                    await asyncio.sleep(self._again_s)
        finally:
            await connected_client.close()

    def _body(self, finding: Judged, report: Report) -> dict[str, Any]:
        """Return the merge patch that sets the annotation with the node's check result.

        It carries the pod's uid, so that a later pod of the same name is not changed.
        """
        from turnout.kube.labels import NODE_VERDICT
        from turnout.kube.node_health import CheckResult, NodeReport, encode_report, utc_datetime

        verdict = NodeReport(
            CheckResult(finding.result.value),
            utc_datetime(time.time()),
            finding.round,
            finding.by[:253],
            finding.members,
            finding.run[:253],
            self._node[:253],
            finding.cause[:253],
            finding.why[:512],
            report.compute_s,
            report.collective_s,
        )
        uid = {"uid": self._pod.uid} if self._pod.uid else {}  # do not write on a later pod of the same name
        return {"metadata": {"annotations": {NODE_VERDICT: encode_report(verdict)}, **uid}}


def _client() -> tuple[Any, Any]:
    """Import and return the class of the API client and the module of its errors. Takes about a second: call it in a
    thread.
    """
    from turnout.kube import errors
    from turnout.kube.client.api_client import Client, load_library

    load_library()
    return Client, errors
