"""Serve a kubelet's HTTPS endpoint as far as an API server uses it for `kubectl logs`: the output of containers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from turnout.simulator.api.errors import ApiRefusal
from turnout.simulator.api.server import logs
from turnout.simulator.processes.runtime.logs import PodLogs

HOST = "127.0.0.1"


@asynccontextmanager
async def endpoint(pod_logs: PodLogs, authority: Path, certificate: Path, key: Path) -> AsyncIterator[int]:
    """Serve on a free loopback port until the block ends, and give the port.

    Only callers signed by `authority` get in.
    """
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    trust.load_cert_chain(certificate, key)
    trust.verify_mode = ssl.CERT_REQUIRED

    async def answer(request: web.Request) -> web.StreamResponse:
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
