"""The local cluster's own process: everything runs here until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from turnout.cli.local_cluster.control_plane import control_plane
from turnout.cli.local_cluster.daemon import (
    KUBECONFIG,
    MAP,
    MAP_NAME,
    NAMESPACE,
    PODS,
    STATE_FILE,
    ClusterRecord,
    encode_record,
    process_start_ticks,
)
from turnout.cli.local_cluster.prestart import Prestarted
from turnout.cli.verb_support.child_programs import extender_command, free_port, running_extender, wait_until_ready
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import NodeSpec, generate_nodes, map_text
from turnout.simulator.cluster.runtime.clients import ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.cluster.scheduler import ExtenderSettings
from turnout.simulator.local_cluster import LocalCluster, attached_cluster, local_cluster
from turnout.simulator.processes.runtime.logs import HOST, PodLogs, endpoint
from turnout.topology.names import TEXT_KEY

_WEIGHT = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a local cluster."""

    folder: Path  # of its kubeconfig, its logs and its state file
    nodes: int  # number of nodes to create; ignored with `places`
    gpus: int  # of each node
    port: int = 0  # of the API on loopback, 0 for a free one
    extender: bool = True  # the scheduler asks an extender
    real: bool = False  # the control plane is a real one
    processes: bool = False  # pods run their commands as processes
    places: tuple[NodeSpec, ...] | None = None  # nodes of a map's hosts; None for `nodes` generated ones
    map_data: tuple[tuple[str, str], ...] = ()  # (key, value) of the map's ConfigMap; () for that of generated nodes

    @property
    def pods(self) -> Path | None:
        """The folder for the files of pods; None if pods run nothing."""
        return self.folder / PODS if self.processes else None


async def serve(request: ClusterOptions, begun: Prestarted | None) -> None:
    """Run the local cluster until SIGTERM or SIGINT.

    begun: what `prestart` has started for an embedded cluster; None for a real control plane. Raises ExtenderFailed if
    the extender does not start, and LocalClusterFailed if a real control plane does not.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await asyncio.to_thread(shutil.rmtree, request.folder / PODS, True)  # of a local cluster that was killed
    nodes = list(request.places if request.places is not None else generate_nodes(request.nodes))
    data = dict(request.map_data) or {TEXT_KEY: map_text(nodes)}
    async with AsyncExitStack() as stack:
        if begun is not None:
            cluster, url = await _embedded(stack, request, begun, nodes, data)
        else:
            cluster, url = await _real(stack, request, nodes, data)
        pid = os.getpid()
        record = ClusterRecord(
            pid,
            process_start_ticks(pid),
            cluster.address,
            len(nodes),
            request.gpus,
            url,
            request.real,
            request.processes,
        )
        await announce_until_stopped(cluster, request.folder / STATE_FILE, record, stop)


async def announce_until_stopped(cluster: LocalCluster, file: Path, record: ClusterRecord, stop: asyncio.Event) -> None:
    """Write the cluster's record to `file`, so that commands find the cluster; delete the file once `stop` is set.

    End it by `stop`, not by cancelling: if the task is cancelled, the file stays, with the error of the part of the
    cluster that failed, or "it was cancelled"; CancelledError is raised again. record: what is written.
    """
    _put(file, encode_record(record))
    try:
        await stop.wait()
        await asyncio.to_thread(file.unlink, True)
    except asyncio.CancelledError:
        _put(file, encode_record(replace(record, fault=cluster.background.fault() or "it was cancelled")))
        raise


async def _embedded(
    stack: AsyncExitStack, request: ClusterOptions, begun: Prestarted, nodes: list[NodeSpec], data: dict[str, str]
) -> tuple[LocalCluster, str]:
    """Run API, nodes, controllers and scheduler in this process, until `stack` is closed.

    data: of the map's ConfigMap. Returns the local cluster and the URL of its extender, "" for none.
    """
    config = request.folder / KUBECONFIG
    running_ = local_cluster(config, pace=Pace(), processes=request.pods, listening=begun.listening, token=begun.token)
    cluster = await stack.enter_async_context(running_)
    await cluster.add_nodes(nodes, request.gpus)
    await _write_map(cluster, data)
    await cluster.run_jobs()
    if begun.extender is None:
        cluster.schedule(SchedulerSettings())
        return cluster, ""
    url = (await stack.enter_async_context(wait_until_ready(begun.extender, cluster.session))).url
    cluster.schedule(SchedulerSettings(extender=ExtenderSettings(weight=_WEIGHT)), ExtenderClient(cluster.session, url))
    return cluster, url


async def _real(
    stack: AsyncExitStack, request: ClusterOptions, nodes: list[NodeSpec], data: dict[str, str]
) -> tuple[LocalCluster, str]:
    """Run a real control plane, whose scheduler calls the extender, until `stack` is closed.

    With the option `processes`, this project's kubelet replaces kwok. Returns the local cluster and the URL of its
    extender, "" without one. nodes: to create. data: of the map's ConfigMap.
    """
    port = free_port() if request.extender else 0
    asks = f"http://{HOST}:{port}" if port else ""
    below = await stack.enter_async_context(control_plane(asks, kwok=not request.processes))
    config = await asyncio.to_thread(below.kubeconfig.read_bytes)
    await asyncio.to_thread(_put, request.folder / KUBECONFIG, config)
    cluster = await stack.enter_async_context(attached_cluster(kubeconfig.read_kubeconfig(config)))
    kubelet = ("", 0)
    if request.processes:
        pod_logs = PodLogs()
        listens = endpoint(pod_logs, below.authority, below.certificate, below.key)
        kubelet = (HOST, await stack.enter_async_context(listens))
        pod_logs.runner = cluster.run_pods(Pace(), request.pods, config)
    await cluster.add_nodes(nodes, request.gpus, kubelet)
    await _write_map(cluster, data)
    if not port:
        return cluster, ""
    up = running_extender(extender_command(), request.folder / KUBECONFIG, MAP, request.folder, cluster.session, port)
    return cluster, (await stack.enter_async_context(up)).url


async def _write_map(cluster: LocalCluster, data: dict[str, str]) -> None:
    await cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    body = {"metadata": {"name": MAP_NAME}, "data": data}
    await cluster.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)


def _put(file: Path, text: bytes) -> None:
    """Write `text` to a file that only its owner may read. No reader of an existing file sees a part of the new one."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)  # left by a process that was killed; its mode is unknown
    part.touch(mode=0o600, exist_ok=False)
    part.write_bytes(text)
    part.rename(file)  # atomic
