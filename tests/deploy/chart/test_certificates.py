"""Certificates that helm makes, over upgrades on a real API server, and the extender that serves them."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from hack.codegen import chart
from hack.controlplane.tools import cache
from tests.scheduler_ext.server.test_tls import CERTIFICATE_CHECK_S, opened
from tests.scheduler_ext.server_support import body, head, one_answer
from turnout.scheduler_ext.server.ports import TlsFiles

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

NAMES = ("turnout-ca", "turnout-extender-tls", "turnout-scheduler-tls")
HOST = "turnout-extender.gpu-team.svc"
UNTIL = "turnout.dev/valid-until"
# No pods: the Secrets are what is looked at.
NO_PODS = ("--set", "extender.replicas=0,autoscaler.enabled=false")


@pytest.fixture
def release(control_plane, tmp_path):
    """The release `turnout` in the namespace gpu-team of a real API server."""
    return Release(control_plane, tmp_path)


class Release:
    def __init__(self, plane, folder):
        self.plane = plane
        self._env = {"HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig), "PATH": os.environ["PATH"]}

    async def helm(self, verb, *more):
        words = (verb, "turnout", str(chart.ROOT / chart.CHART), "--namespace", "gpu-team", *NO_PODS, *more)
        argv = [cache.binary("helm"), *words]
        done = await asyncio.to_thread(
            subprocess.run, argv, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def secrets(self):
        """Give what is in each Secret, by its name."""
        async with self.plane.api() as api:
            found = [await api.get(f"/api/v1/namespaces/gpu-team/secrets/{name}") for name in NAMES]
        return {
            each["metadata"]["name"]: {key: base64.b64decode(text) for key, text in each["data"].items()}
            for each in found
        }

    async def ends_in(self, name, days):
        """Let the certificate in a Secret have so many days left, for helm."""
        until = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        async with self.plane.api() as api:
            path = f"/api/v1/namespaces/gpu-team/secrets/{name}"
            await api.patch(path, {"metadata": {"annotations": {UNTIL: until}}})
        return until


def put(secret, folder):
    """Write a Secret as its mount has it. Gives the paths."""
    folder.mkdir(exist_ok=True)
    for name, data in secret.items():
        (folder / name).write_bytes(data)
    return TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")


def kube_scheduler(files):
    """The TLS of a kube-scheduler with these files."""
    context = ssl.create_default_context(cafile=str(files.client_ca))
    context.load_cert_chain(files.cert, files.key)
    return context


@asynccontextmanager
async def connection(listeners, context):
    reader, writer = await asyncio.open_connection("127.0.0.1", listeners.port, ssl=context, server_hostname=HOST)
    try:
        yield reader, writer
    finally:
        writer.close()


async def serial_served(listeners, context):
    """Ask the extender one question. Gives the serial number of the certificate that it showed."""
    async with connection(listeners, context) as (reader, writer):
        writer.write(head(len(body())) + body())
        assert (await one_answer(reader))[0].startswith("http/1.1 200")
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(shown).serial_number


def serial(secret):
    return x509.load_pem_x509_certificate(secret["tls.crt"]).serial_number


async def test_an_upgrade_renews_what_has_a_third_of_its_year_left(release, tmp_path):
    """The extender serves it without a restart. kube-scheduler's copy of its old certificate is good all the while."""
    await release.helm("install", "--create-namespace")
    first = await release.secrets()
    served = put(first["turnout-extender-tls"], tmp_path / "served")
    copied = put(first["turnout-scheduler-tls"], tmp_path / "copied")
    async with opened(served) as (listeners, clock, _):
        assert await serial_served(listeners, kube_scheduler(copied)) == serial(first["turnout-extender-tls"])
        await release.ends_in("turnout-extender-tls", 200)
        await release.helm("upgrade")
        assert await release.secrets() == first  # more than a third of a year is left

        for name in NAMES[1:]:
            await release.ends_in(name, 100)
        notes = await release.helm("upgrade")
        renewed = await release.secrets()
        assert f"valid until {(datetime.now(UTC) + timedelta(days=365)).year}" in notes
        assert renewed["turnout-ca"] == first["turnout-ca"]
        assert {serial(renewed[name]) for name in NAMES[1:]}.isdisjoint(serial(first[name]) for name in NAMES[1:])

        put(renewed["turnout-extender-tls"], tmp_path / "served")  # as the kubelet does
        assert clock.asked_s == CERTIFICATE_CHECK_S
        await clock.tick()
        assert await serial_served(listeners, kube_scheduler(copied)) == serial(renewed["turnout-extender-tls"])
        renewed_files = put(renewed["turnout-scheduler-tls"], tmp_path / "again")
        assert await serial_served(listeners, kube_scheduler(renewed_files)) == serial(renewed["turnout-extender-tls"])


async def test_a_ca_near_its_end_is_renewed_with_all_that_it_signed(release):
    await release.helm("install", "--create-namespace")
    first = await release.secrets()
    until = await release.ends_in("turnout-scheduler-tls", 300)
    await release.ends_in("turnout-ca", 500)  # a third of five years is 608 days
    assert until not in await release.helm("upgrade")
    renewed = await release.secrets()
    assert not [name for name in NAMES if renewed[name]["tls.crt"] == first[name]["tls.crt"]]
    ca = x509.load_pem_x509_certificate(renewed["turnout-ca"]["tls.crt"])
    for name in NAMES[1:]:
        assert renewed[name]["ca.crt"] == renewed["turnout-ca"]["tls.crt"]
        x509.load_pem_x509_certificate(renewed[name]["tls.crt"]).verify_directly_issued_by(ca)
