"""Find and serve the logs of pods that are processes, for `kubectl logs`."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from turnout.simulator.api.model import ApiRefusal
from turnout.simulator.api.server import logs
from turnout.simulator.processes.pod_lifecycle import ContainerState
from turnout.simulator.processes.runtime.pod_runner import Runner
from turnout.simulator.processes.runtime.pod_worker import RunningPod


@dataclass(frozen=True, slots=True)
class PodLog:
    """The output of one run of a container."""

    life: RunningPod
    container: str
    run: int  # its number, from 0
    path: Path | None  # None: there is no such run, or its output is removed

    def live(self) -> bool:
        """Return True if more output may come: this run still runs.

        Raises KeyError if the pod has no such container.
        """
        now = self.life.lifecycle.container(self.container)
        return now.state is ContainerState.RUNNING and now.restarts == self.run


class PodLogs:
    """Finds the logs of a runner's pods. Without a runner there are none."""

    def __init__(self) -> None:
        self.runner: Runner | None = None

    def find(self, pod: dict[str, Any], container: str, previous: bool) -> PodLog | None:
        """Return the log of a container; None if the pod is not one of the runner's.

        previous: True for the run before the last one. The `path` of the log is None if there was no such run, or its
        output is removed. Raises KeyError for a container that the pod does not have.
        """
        meta = pod["metadata"]
        life = self.runner.find(meta["namespace"], meta["name"]) if self.runner is not None else None
        if life is None:
            return None
        return PodLog(
            life, container, life.lifecycle.container(container).restarts - previous, life.log_of(container, previous)
        )


HOST = "127.0.0.1"


@asynccontextmanager
async def endpoint(pod_logs: PodLogs, authority: Path, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Serve the logs of pods with TLS on a free loopback port until the block ends, and yield the port.

    authority: the CA that must have signed a caller's certificate. certificate, key: of this server. All are PEM files;
    raises OSError (ssl.SSLError) for a file that cannot be used.
    """
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    trust.load_cert_chain(certificate, key)
    trust.verify_mode = ssl.CERT_REQUIRED

    async def answer(request: web.Request) -> web.StreamResponse:
        """Send the log of a container of a pod that runs here; 404 for any other pod, and a refusal as its status
        and text.
        """
        found = request.match_info
        life = pod_logs.runner.find(found["namespace"], found["pod"]) if pod_logs.runner is not None else None
        if life is None:
            return web.Response(status=404, text=f"pod {found['pod']} is not run here")
        pod = {**life.pod, "status": life.last_status or life.pod.get("status")}
        try:
            return await logs.answer(request, pod, pod_logs, found["container"])
        except ApiRefusal as refusal:
            return web.Response(status=refusal.code, text=refusal.message)

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0, ssl_context=trust).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
