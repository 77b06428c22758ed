"""The yard's own process: everything runs here until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from console.shell.extender import own_extender, running
from console.yard.note import KUBECONFIG, NOTE, Note, written
from simulator.yard.kubelet import Pace
from simulator.yard.nodes import Place, map_text, places
from simulator.yard.scheduler import Extender
from simulator.yard.shell.loop import Settings
from simulator.yard.shell.wire import ExtenderDoor
from simulator.yard.shell.yard import Yard, yard
from topology.parse import TEXT_KEY

_NAMESPACE, _MAP = "turnout-system", "node-topology-config"
_WEIGHT = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A yard as it was asked for. places: of a map's hosts; None for `nodes` generated ones."""

    folder: Path
    nodes: int
    gpus: int
    port: int = 0
    extender: bool = True
    places: tuple[Place, ...] | None = None
    map_data: tuple[tuple[str, str], ...] = ()


async def serve(wanted: Wanted) -> None:
    """Run the yard until SIGTERM. Raises ExtenderFailed, OSError for a port that is taken."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    standing = list(wanted.places if wanted.places is not None else places(wanted.nodes))
    data = dict(wanted.map_data) or {TEXT_KEY: map_text(standing)}
    kubeconfig = wanted.folder / KUBECONFIG
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(yard(kubeconfig, wanted.port, Pace()))
        await made.add_nodes(standing, wanted.gpus)
        await _write_map(made, data)
        await made.run_jobs()
        url = ""
        if wanted.extender:
            running_ = running(own_extender(), kubeconfig, f"{_NAMESPACE}/{_MAP}", wanted.folder, made.session)
            url = (await stack.enter_async_context(running_)).url
        if url:
            made.schedule(Settings(extender=Extender(weight=_WEIGHT)), ExtenderDoor(made.session, url))
        else:
            made.schedule(Settings())
        note = wanted.folder / NOTE
        text = written(Note(os.getpid(), made.url, len(standing), wanted.gpus, url))
        await asyncio.to_thread(_put, note, text)
        try:
            await told.wait()
        finally:
            await asyncio.to_thread(note.unlink, True)


async def _write_map(made: Yard, data: dict[str, str]) -> None:
    await made.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    body = {"metadata": {"name": _MAP}, "data": data}
    await made.api.call("POST", f"/api/v1/namespaces/{_NAMESPACE}/configmaps", body)


def _put(file: Path, text: bytes) -> None:
    part = file.with_suffix(".part")
    part.write_bytes(text)
    part.rename(file)  # whole or not at all
