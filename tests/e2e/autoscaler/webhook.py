"""A validating webhook of a story's own: an HTTPS server on loopback that the API server asks before each change."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import asynccontextmanager

from aiohttp import web

from hack.controlplane.errors import ApiError
from hack.controlplane.servers.programs import base64_of
from tests.e2e.autoscaler.lending import JOBS
from tests.kit import cluster

NAME = "hands-off.turnout.test"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
FIELD_MANAGER = "turnout-autoscaler"
PROBE = "probe"  # a Job whose changes are always refused, by which one sees that the API server asks


class Webhook:
    """Judges the autoscaler's patches of some Jobs; others' pass. asked_s: when, by a monotonic clock.

    refuses: what it says. answers: cleared, it says nothing for as long.
    """

    def __init__(self, *jobs):
        self.jobs, self.asked_s, self.refuses = set(jobs), [], True
        self.answers = asyncio.Event()
        self.answers.set()

    async def review(self, request):
        request_body = (await request.json())["request"]
        is_refused = request_body["name"] in self.jobs and request_body["options"].get("fieldManager") == FIELD_MANAGER
        if is_refused:
            self.asked_s.append(time.monotonic())
            await self.answers.wait()
        refused = (is_refused and self.refuses) or request_body["name"] == PROBE
        verdict = {"uid": request_body["uid"], "allowed": not refused, "status": {"message": "hands off", "code": 403}}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": verdict})


@asynccontextmanager
async def admission(stage, webhook):
    """Let the API server ask a webhook before it changes a Job, from the first moment of the block to its end."""
    pair = stage.plane.authority.server("webhook")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    app = web.Application()
    app.add_routes([web.post("/review", webhook.review)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        async with stage.plane.api() as api:
            probe = cluster.indexed_job(PROBE, 1)
            probe["spec"]["suspend"] = True  # it has no pods, and is there to be asked about
            await api.create(probe)
            await api.create(_configuration(f"https://127.0.0.1:{port}/review", base64_of(stage.plane.ca)))
            try:
                await _until_registered(api, True)
                yield
            finally:
                await api.delete(f"{CONFIGURATIONS}/{NAME}")
            await _until_registered(api, False)
            await api.delete(f"{JOBS}/{PROBE}")
    finally:
        await runner.cleanup()


async def _until_registered(api, jobs):
    """Wait until the API server asks, or asks no more: it learns of a change on its own watch."""
    async with asyncio.timeout(30):
        while True:
            try:
                await api.patch(f"{JOBS}/{PROBE}", {"metadata": {"labels": {"asked": str(jobs)}}})
                is_registered = False
            except ApiError as error:
                is_registered = "hands off" in error.message
            if is_registered == jobs:
                return


def _configuration(url, authority):
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    hook = {
        "name": NAME,
        "clientConfig": {"url": url, "caBundle": authority},
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 20,
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return {**head, "metadata": {"name": NAME}, "webhooks": [hook]}
