"""Checks what is to be run, and makes an agent: its identity, its listener, its arbiter and its processes."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from turnout.launcher.addresses import free_port, is_own_address, own_address, resolve_host
from turnout.launcher.agent.agent import Agent
from turnout.launcher.agent.switch_path import SwitchPathReader
from turnout.launcher.errors import BadSettings, LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.model import NodeCheckState
from turnout.launcher.model import MAX_ID_CHARS, PORT, Exit, Member
from turnout.launcher.rendezvous.arbiter import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.find_coordinator import Search
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.rendezvous.transport.listener import Listener
from turnout.launcher.settings import (
    Command,
    Devices,
    LockKind,
    PlaceSettings,
    RendezvousSettings,
    ScriptKind,
    Settings,
)
from turnout.launcher.workers.worker_group import WorkerBackend, WorkerGroup


def check_command(command: Command) -> None:
    """Raise BadSettings if the script or the program does not exist. A module is looked for by its own process."""
    name = command.program
    match command.kind:
        case ScriptKind.SCRIPT | ScriptKind.RUN_PATH:
            if not os.path.exists(name):
                raise BadSettings(f"there is no script {name!r} in {os.getcwd()}")
        case ScriptKind.PROGRAM:
            if shutil.which(name) is None:
                raise BadSettings(f"there is no program {name!r} that could be run")


def check_metrics(port: int | None) -> None:
    """Raise BadSettings if metrics are to be served and their library is not installed."""
    if port is not None and find_spec("prometheus_client") is None:
        raise BadSettings("--metrics-port needs pip install 'turnout[launcher]'")


_MAX_TOKEN_BYTES = 4_096

_FEWEST_TOKEN_BYTES = 16


class CannotListen(LauncherError):
    """The agent cannot listen on its port. Name the port and end."""


def token_of(rendezvous: RendezvousSettings, address: str) -> bytes:
    """Return the job's token from its file, without surrounding space; b"" if the settings name no file.

    address: this agent's IP address. Raises BadSettings if the file is missing, is no regular file, cannot be read or
    does not have 16 to 4,096 bytes. Also raises it if no file is named, unless the address is loopback or
    --insecure-no-token is given.
    """
    if rendezvous.token_file:
        try:
            file = Path(rendezvous.token_file)
            if not stat.S_ISREG(file.stat().st_mode):
                raise BadSettings(f"the token {file} is no file")
            token = file.read_bytes()[: _MAX_TOKEN_BYTES + 1].strip()
        except OSError as error:
            raise BadSettings(f"the token {rendezvous.token_file} cannot be read: {error.strerror}") from error
        if not _FEWEST_TOKEN_BYTES <= len(token) <= _MAX_TOKEN_BYTES:
            raise BadSettings(
                f"the token {rendezvous.token_file} has {len(token)} bytes: "
                f"{_FEWEST_TOKEN_BYTES} to {_MAX_TOKEN_BYTES} are needed"
            )
        return token
    if not rendezvous.insecure and not ipaddress.ip_address(address).is_loopback:
        raise BadSettings(
            f"without a token agents meet on loopback only, and this one's address is {address}: "
            "give --token-file FILE, the same on all workers, or --insecure-no-token"
        )
    return b""


def listen_at(address: str) -> socket.socket:
    """Return a listening socket on any free port of this address, for other workers' daemons.

    Raises CannotListen if the address is not of this host, or if no port can be used.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen at {address} for other daemons: {error.strerror}") from error
    return listener


def member_of(
    place: PlaceSettings,
    address: str,
    port: int,
    processes: int,
    path: tuple[str, ...],
    daemon_port: int = 0,
    store_port: int = 0,
) -> Member:
    """Describe this agent as a member. Its id is new, so messages of an earlier agent with this name do not bind it.

    place: what the settings say of this worker. address, port: where this agent listens. processes: number of training
    processes. path: switches above the host, () if unknown. daemon_port: of the checkpoint daemon, 0 for none.
    store_port: the port at which training processes meet if this member has rank 0; 0: a free one is chosen. Raises
    BadMember for a field out of its bounds, and OSError if no port is free.
    """
    hostname = socket.gethostname()
    name = place.name or (f"{hostname}-{port}" if address == "127.0.0.1" else hostname)
    incarnation = f"/{secrets.token_hex(6)}"
    return Member(
        id=name[: MAX_ID_CHARS - len(incarnation)] + incarnation,
        name=name,
        host=place.host or os.environ.get("NODE_NAME", "") or hostname,
        address=address,
        port=port,
        processes=processes,
        path=path,
        index=place.order,
        started_s=time.time(),
        master_port=store_port or free_port(address),
        daemon_port=daemon_port,
    )


LOOPBACK = "127.0.0.1"

ARBITER_S = 60.0  # seconds for the arbiter's first answer


async def run_agent(
    settings: Settings,
    environ: Mapping[str, str],
    log_event: EventLog,
    *,
    training: WorkerBackend | None = None,
    ready: Callable[[Callable[[], None]], None] | None = None,
) -> Exit:
    """Take part in a job until it is over, and return how it ended.

    Raises BadSettings if the token or the devices do not fit the settings, CannotListen if a port cannot be used,
    LockRefused if the arbiter cannot be used, and BadMember, all before any process is started.

    environ: of the training processes and of this agent. training: runs the processes; None: the agent starts them
    itself. ready: called once with a function that makes this member leave, if signals are handled elsewhere; None:
    they are handled here.
    """
    if single_worker := _is_single_worker(settings):
        settings = _single_worker_settings(settings)
    rendezvous, place = settings.rendezvous, settings.place
    endpoint = await resolve_host(rendezvous.host) if rendezvous.host else None
    address = LOOPBACK if single_worker else place.address or own_address(endpoint)
    token = token_of(rendezvous, address)
    log_event, serving = _with_metrics(settings, address, log_event)
    where = SwitchPathReader(environ, place.path, place.path_file, environ.get("TURNOUT_MAP_DIR", ""))
    arbiter = await arbiter_of(settings)
    listener = Listener(token, rendezvous.run, lambda what, fields: log_event(what, fields))
    host, port = await _listen(listener, settings, endpoint, address)
    processes = _processes(settings, environ)
    copies = listen_at(address) if training is None else None
    daemon, store = copies.getsockname()[1] if copies is not None else 0, rendezvous.store_port
    member = member_of(place, address, port, processes, (await asyncio.to_thread(where.look)).path, daemon, store)
    leadership = _leadership(settings, member, listener, arbiter, log_event)
    backend = training or WorkerGroup(settings, processes, environ, log_event, socket.gethostname(), copies, token)
    at = (rendezvous.host, port if host else rendezvous.port)
    seek = Search(
        member.id, at if rendezvous.host else None, host, arbiter is not None, settings.elastic_spec.join_timeout_s
    )
    agent = Agent(settings, member, token, backend, leadership, seek, log_event, where.look)
    if ready is not None:
        ready(agent.leave)
    with serving:
        names = () if ready else ("SIGUSR1", *settings.start.signals)
        return await agent.run([signal.Signals[name] for name in names])


def _leadership(
    settings: Settings, me: Member, listener: Listener, arbiter: RoundLock | None, log_event: EventLog
) -> Leadership:
    """Return the Leadership by which this agent coordinates if it becomes the coordinator. arbiter: None for none."""
    rendezvous, job = settings.rendezvous, (settings.rendezvous.run, settings.elastic_spec, settings.timing)
    return Leadership(
        me,
        *job,
        listener,
        log_event,
        arbiter=arbiter,
        hangs=settings.hangs,
        worker_count=rendezvous.worker_count or 0,
        sole_coordinator=rendezvous.arbiter is LockKind.NONE,
        node_checks=node_checks(settings),
    )


def node_checks(settings: Settings) -> NodeCheckState | None:
    """Return the state before the first node check, None if nodes are not checked."""
    checks = settings.checks
    if not checks.network:
        return None
    return NodeCheckState(checks.limits, checks.exclude_straggler, checks.performance, checks.probing.round_s)


def _is_single_worker(settings: Settings) -> bool:
    """Return True if this worker is the whole job, and no record of the job is kept elsewhere."""
    rendezvous = settings.rendezvous
    nowhere = settings.elastic_spec.max_nodes == 1 and rendezvous.port == 0 and rendezvous.arbiter is LockKind.NONE
    return rendezvous.standalone or (nowhere and rendezvous.host == LOOPBACK)


def _single_worker_settings(settings: Settings) -> Settings:
    """Return settings for a single worker on loopback, without successors."""
    rendezvous = replace(settings.rendezvous, host=LOOPBACK, port=0, is_host=True, arbiter=LockKind.NONE)
    return replace(settings, rendezvous=replace(rendezvous, run=rendezvous.run or secrets.token_hex(8)))


def _with_metrics(
    settings: Settings, address: str, log_event: EventLog
) -> tuple[EventLog, AbstractContextManager[object]]:
    """Return an event log, and a context that closes the metrics server.

    With settings.output.metrics_port, the event log also counts each event as metrics, and the server listens at
    `address`. Without it, return `log_event` itself, and a context that does nothing. Raises CannotListen if the server
    cannot listen there.
    """
    if (port := settings.output.metrics_port) is None:
        return log_event, nullcontext()
    from turnout.launcher.agent.goodput_metrics import GoodputMetrics
    from turnout.launcher.agent.metrics import Metrics
    from turnout.launcher.agent.save_metrics import SaveMetrics

    metrics = Metrics(settings.rendezvous.run)
    goodput = GoodputMetrics(metrics.registry, settings.rendezvous.run)
    saves = SaveMetrics(metrics.registry, settings.rendezvous.run)

    def count_and_log(event: str, fields: Mapping[str, object]) -> None:
        """Count an event in all metrics, and log it."""
        metrics.count_event(event, fields)
        goodput.count_event(event, fields)
        saves.count_event(event, fields)
        log_event(event, fields)

    try:
        return count_and_log, metrics.serve(address, port)
    except OSError as error:
        raise CannotListen(f"cannot serve metrics at {address}:{port}: {error.strerror}") from error


async def arbiter_of(settings: Settings) -> RoundLock | None:
    """Connect to the job's arbiter (a Lease or a folder) and return it; None if the job has none.

    If it is unreachable, try again for ARBITER_S seconds. Raises LockRefused after that, and at once if it refuses.
    """
    rendezvous = settings.rendezvous
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ARBITER_S
    while True:
        try:
            if rendezvous.arbiter is LockKind.LEASE:
                from turnout.launcher.rendezvous.locks.lease_lock import LeaseLock

                return await LeaseLock.open(rendezvous.lease, rendezvous.run)
            if rendezvous.arbiter is LockKind.FILE:
                from turnout.launcher.rendezvous.locks.file_lock import FileLock

                return await FileLock.open(Path(rendezvous.round_dir), rendezvous.run)
            return None
        except LockUnreachable as error:
            if loop.time() > until_s:
                raise LockRefused(error.arbiter, error.why, "is it there?") from error
            await asyncio.sleep(1.0)


async def _listen(listener: Listener, settings: Settings, endpoint: str | None, address: str) -> tuple[bool, int]:
    """Start to listen for members. Return (this agent is the one that the endpoint names, its port).

    endpoint: IP address of the endpoint, None for none. address: of this agent. If another agent of this host listens
    at the endpoint already, another port is used, unless the settings say that this agent is the host. Raises
    CannotListen for any other failure to listen there, and if no port of `address` can be used.
    """
    rendezvous = settings.rendezvous
    host = rendezvous.is_host if rendezvous.is_host is not None else _is_coordinator_host(settings, endpoint)
    if host and endpoint is not None:
        try:
            return True, await listener.open(endpoint, rendezvous.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or rendezvous.is_host:
                raise CannotListen(f"cannot listen at {endpoint}:{rendezvous.port}: {error.strerror}") from error
    # The worker that the endpoint names listens at that port.
    ports = (0,) if endpoint == address else (rendezvous.port or PORT, 0)
    return host and endpoint is None, await _listen_on_any(listener, address, ports)


async def _listen_on_any(listener: Listener, address: str, ports: Iterable[int]) -> int:
    """Listen at the first of these ports that is free; return it, 0 meaning any free port.

    Raises CannotListen if all ports are in use, or at the first other failure to listen.
    """
    for port in ports:
        try:
            return await listener.open(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CannotListen(f"cannot listen at {address}: {error.strerror}") from error
    raise CannotListen(f"cannot listen at {address}: no port is free")


def _is_coordinator_host(settings: Settings, endpoint: str | None) -> bool:
    """Return True if this agent coordinates first: the rendezvous host is this agent's, or no host is set and this is
    the first worker.

    endpoint: IP address of the rendezvous host; None if no host is set, or if it cannot be resolved. With a host that
    cannot be resolved, the result is False.
    """
    if not settings.rendezvous.host:
        return settings.place.order == 0
    return endpoint is not None and (
        endpoint == settings.place.address if settings.place.address else is_own_address(endpoint)
    )


def _processes(settings: Settings, environ: Mapping[str, str]) -> int:
    """Return the number of training processes: the given one, else the number of devices or CPUs that --nproc-per-node
    names.

    With "auto", CPUs are counted if there is no device. Raises BadSettings if there is no device of the named kind,
    and OSError if the devices cannot be listed.
    """
    count = settings.processes
    if isinstance(count, int):
        return count
    cpus = len(os.sched_getaffinity(0))
    if count is Devices.CPU:
        return cpus
    devices = count_devices(count, environ)
    if not devices and count is not Devices.AUTO:
        raise BadSettings(f"--nproc-per-node={count.value}: there is no such device here")
    return devices or cpus


_DEV = Path("/dev")

_DRM = Path("/sys/class/drm")  # a link to each render device, named as in /dev/dri

_INTEL = "0x8086"  # vendor of XPUs on the PCI bus


def count_devices(kind: Devices, environ: Mapping[str, str], dev: Path = _DEV, drm: Path = _DRM) -> int:
    """Count the GPUs of this kind: for XPU Intel's render devices, else those of NVIDIA.

    NVIDIA's are the entries of CUDA_VISIBLE_DEVICES before the first invalid one, such as -1, and none if one is listed
    twice; without that variable, the device files. dev, drm: /dev and /sys/class/drm. Raises OSError if /dev cannot be
    listed.
    """
    if kind is Devices.XPU:
        vendors = [drm / device.name / "device" / "vendor" for device in dev.glob("dri/renderD*")]
        return sum(vendor.is_file() and vendor.read_text().strip() == _INTEL for vendor in vendors)
    if (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        entries = [entry.strip() for entry in visible.split(",")]
        # CUDA accepts numbers, or names with one prefix.
        pattern = entries[0][:4] if entries[0].startswith(("GPU-", "MIG-")) else "[0-9]"
        valid_entries = list(takewhile(re.compile(pattern).match, entries))
        return len(valid_entries) if len({*valid_entries}) == len(valid_entries) else 0
    return len([name for name in os.listdir(dev) if re.fullmatch(r"nvidia\d+", name)])
