"""Serves at the address of a Service as kube-proxy would: connections go to the pod that its selector chooses."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

from tests.kit.listener import serving


@asynccontextmanager
async def served(api, namespace, name):
    """Relay connections to a Service of one port until the block ends. Waits until the Service is there."""
    services = f"/api/v1/namespaces/{namespace}/services"
    async with asyncio.timeout(40):
        async for _, now in api.changes(services):
            if now.obj.get("metadata", {}).get("name") == name:
                spec = now.obj["spec"]
                break
    (port,) = (each["port"] for each in spec["ports"])
    pods = f"/api/v1/namespaces/{namespace}/pods"
    labels = ",".join(f"{key}={value}" for key, value in spec["selector"].items())

    async def relay(reader, writer):
        """Connect it to the pod, once that listens."""
        found = (await api.call("GET", f"{pods}?labelSelector={labels}"))["items"]
        if not found:
            return
        (pod,) = found
        with suppress(OSError, TimeoutError):
            to_reader, to_writer = await _connected(pod["status"]["podIP"], port)
            try:
                await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
            finally:
                to_writer.close()

    async with serving(relay, spec["clusterIP"], port):
        yield spec["clusterIP"], port


async def _connected(host, port):
    async with asyncio.timeout(40):
        while True:
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, port)
            await asyncio.sleep(0.05)


async def _copy(reader, writer):
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
