"""The local cluster's own process: everything runs here until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from turnout.cli.commands.extender_process import free_port, own_extender, ready, running
from turnout.cli.local_cluster.control_plane import plane
from turnout.cli.local_cluster.daemon import begun_at
from turnout.cli.local_cluster.prestart import Prestarted
from turnout.cli.local_cluster.state_file import KUBECONFIG, MAP, MAP_NAME, NAMESPACE, NOTE, PODS, Note, written
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import Place, map_text, places
from turnout.simulator.cluster.runtime.clients import ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import Settings
from turnout.simulator.cluster.scheduler import Extender
from turnout.simulator.local_cluster import LocalCluster, attached, local_cluster
from turnout.simulator.processes.runtime.log_endpoint import HOST, endpoint
from turnout.simulator.processes.runtime.logs import PodLogs
from turnout.topology.names import TEXT_KEY

_WEIGHT = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A local cluster as it was asked for. places: of a map's hosts; None for `nodes` generated ones.

    real: on a real control plane. processes: pods run what they say.
    """

    folder: Path
    nodes: int
    gpus: int
    port: int = 0
    extender: bool = True
    real: bool = False
    processes: bool = False
    places: tuple[Place, ...] | None = None
    map_data: tuple[tuple[str, str], ...] = ()

    @property
    def pods(self) -> Path | None:
        """Give the folder for files of pods; None when they run nothing."""
        return self.folder / PODS if self.processes else None


async def serve(wanted: Wanted, begun: Prestarted | None) -> None:
    """Run the local cluster until SIGTERM. Raises ExtenderFailed, LocalClusterFailed.

    begun: what of an embedded one is there already; None for a real one.
    """
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await asyncio.to_thread(shutil.rmtree, wanted.folder / PODS, True)  # of a local cluster that was killed
    standing = list(wanted.places if wanted.places is not None else places(wanted.nodes))
    data = dict(wanted.map_data) or {TEXT_KEY: map_text(standing)}
    async with AsyncExitStack() as stack:
        if begun is not None:
            made, url = await _embedded(stack, wanted, begun, standing, data)
        else:
            made, url = await _real(stack, wanted, standing, data)
        pid = os.getpid()
        note = Note(pid, begun_at(pid), made.address, len(standing), wanted.gpus, url, wanted.real, wanted.processes)
        await stand(made, wanted.folder / NOTE, note, told)


async def stand(made: LocalCluster, file: Path, note: Note, told: asyncio.Event) -> None:
    """Let others find a local cluster until it is told to end. One of which a part fails is found no more, and ends."""
    _put(file, written(note))
    try:
        await told.wait()
        await asyncio.to_thread(file.unlink, True)
    except asyncio.CancelledError:
        _put(file, written(replace(note, fault=made.background.fault() or "it was cancelled")))
        raise


async def _embedded(
    stack: AsyncExitStack, wanted: Wanted, begun: Prestarted, standing: list[Place], data: dict[str, str]
) -> tuple[LocalCluster, str]:
    """Everything in this process; the local cluster, and the URL of its extender."""
    config = wanted.folder / KUBECONFIG
    running_ = local_cluster(config, pace=Pace(), processes=wanted.pods, listening=begun.listening, token=begun.token)
    made = await stack.enter_async_context(running_)
    await made.add_nodes(standing, wanted.gpus)
    await _write_map(made, data)
    await made.run_jobs()
    if begun.extender is None:
        made.schedule(Settings())
        return made, ""
    url = (await stack.enter_async_context(ready(begun.extender, made.session))).url
    made.schedule(Settings(extender=Extender(weight=_WEIGHT)), ExtenderClient(made.session, url))
    return made, url


async def _real(
    stack: AsyncExitStack, wanted: Wanted, standing: list[Place], data: dict[str, str]
) -> tuple[LocalCluster, str]:
    """A real control plane, whose scheduler asks our extender; with processes, our kubelet in place of kwok."""
    port = free_port() if wanted.extender else 0
    asks = f"http://{HOST}:{port}" if port else ""
    below = await stack.enter_async_context(plane(asks, kwok=not wanted.processes))
    config = await asyncio.to_thread(below.kubeconfig.read_bytes)
    await asyncio.to_thread(_put, wanted.folder / KUBECONFIG, config)
    made = await stack.enter_async_context(attached(kubeconfig.read(config)))
    kubelet = ("", 0)
    if wanted.processes:
        kept = PodLogs()
        listens = endpoint(kept, below.authority, below.certificate, below.key)
        kubelet = (HOST, await stack.enter_async_context(listens))
        kept.runner = made.run_pods(Pace(), wanted.pods, config)
    await made.add_nodes(standing, wanted.gpus, kubelet)
    await _write_map(made, data)
    if not port:
        return made, ""
    up = running(own_extender(), wanted.folder / KUBECONFIG, MAP, wanted.folder, made.session, port)
    return made, (await stack.enter_async_context(up)).url


async def _write_map(made: LocalCluster, data: dict[str, str]) -> None:
    await made.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    body = {"metadata": {"name": MAP_NAME}, "data": data}
    await made.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)


def _put(file: Path, text: bytes) -> None:
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)  # of another that was cut off, whose mode may be any
    part.touch(mode=0o600, exist_ok=False)
    part.write_bytes(text)
    part.rename(file)  # whole or not at all
