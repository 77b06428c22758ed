"""Makes an agent from settings: its identity, its listener, its arbiter and its processes."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from turnout.launcher.addresses import is_own, own_address, resolved
from turnout.launcher.agent.agent import Agent
from turnout.launcher.agent.identity import CannotListen, listen_at, member_of, token_of
from turnout.launcher.agent.read_switch_path import SwitchPathReader
from turnout.launcher.errors import BadSettings
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.node_check import NodeCheckState
from turnout.launcher.model import PORT, Exit, Member
from turnout.launcher.rendezvous.find_coordinator import Seek
from turnout.launcher.rendezvous.locks.protocol import RoundLock
from turnout.launcher.rendezvous.round_lock import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.rendezvous.transport.listener import Listener
from turnout.launcher.settings import Devices, LockKind, Settings
from turnout.launcher.workers.worker_backend import WorkerBackend
from turnout.launcher.workers.worker_group import WorkerGroup

LOOPBACK = "127.0.0.1"
ARBITER_S = 60.0  # seconds for the arbiter's first answer


async def run_agent(
    settings: Settings,
    environ: Mapping[str, str],
    say: EventLog,
    *,
    training: WorkerBackend | None = None,
    ready: Callable[[Callable[[], None]], None] | None = None,
) -> Exit:
    """Take part in a job until it is over. Raises BadSettings, CannotListen and LockRefused before anything is started.

    training: holds the processes if this agent does not. ready: called with a function that makes this member leave, if
    signals are handled elsewhere.
    """
    if alone := _meets_nobody(settings):
        settings = _alone(settings)
    meeting, place = settings.meeting, settings.place
    endpoint = await resolved(meeting.host) if meeting.host else None
    address = LOOPBACK if alone else place.address or own_address(endpoint)
    token = token_of(meeting, address)
    say, serving = _measured(settings, address, say)
    where = SwitchPathReader(environ, place.path, place.path_file, environ.get("TURNOUT_MAP_DIR", ""))
    arbiter = await arbiter_of(settings)
    listener = Listener(token, meeting.run, lambda what, fields: say(what, fields))
    host, port = await _listen(listener, settings, endpoint, address)
    processes = _processes(settings, environ)
    copies = listen_at(address) if training is None else None
    daemon, store = copies.getsockname()[1] if copies is not None else 0, meeting.store_port
    me = member_of(place, address, port, processes, (await asyncio.to_thread(where.look)).path, daemon, store)
    leading = _leadership(settings, me, listener, arbiter, say)
    backend = training or WorkerGroup(settings, processes, environ, say, socket.gethostname(), copies, token)
    at = (address if alone else meeting.host, port if host else meeting.port)
    seek = Seek(me.id, at if meeting.host else None, host, arbiter is not None, settings.terms.join_timeout_s)
    agent = Agent(settings, me, token, backend, leading, seek, say, where.look)
    if ready is not None:
        ready(agent.leave)
    with serving:
        return await agent.run([] if ready else _signals(settings))


def _leadership(
    settings: Settings, me: Member, listener: Listener, arbiter: RoundLock | None, say: EventLog
) -> Leadership:
    """Return what this agent leads with, should it become the coordinator."""
    meeting, job = settings.meeting, (settings.meeting.run, settings.terms, settings.timing)
    return Leadership(
        me,
        *job,
        listener,
        say,
        arbiter=arbiter,
        hangs=settings.hangs,
        wanted=meeting.wanted or 0,
        only=meeting.arbiter is LockKind.NONE,
        checking=node_checks(settings),
    )


def _signals(settings: Settings) -> list[signal.Signals]:
    return [signal.SIGUSR1, *(signal.Signals[name] for name in settings.start.signals)]


def node_checks(settings: Settings) -> NodeCheckState | None:
    """Return the state before the first node check, None if nodes are not checked."""
    checks = settings.checks
    if not checks.network:
        return None
    return NodeCheckState(checks.limits, checks.exclude_straggler, checks.performance, checks.probing.round_s)


def _meets_nobody(settings: Settings) -> bool:
    """True if this worker is the whole job, and no record of the job is kept elsewhere."""
    meeting = settings.meeting
    nowhere = settings.terms.most == 1 and meeting.port == 0 and meeting.arbiter is LockKind.NONE
    return meeting.standalone or (nowhere and meeting.host == LOOPBACK)


def _alone(settings: Settings) -> Settings:
    """Return settings for a single worker on loopback, without successors."""
    meeting = replace(settings.meeting, host=LOOPBACK, port=0, is_host=True, arbiter=LockKind.NONE)
    return replace(settings, meeting=replace(meeting, run=meeting.run or secrets.token_hex(8)))


def _measured(settings: Settings, address: str, say: EventLog) -> tuple[EventLog, AbstractContextManager[object]]:
    """Count events as metrics and serve them, if a port for metrics is given. Raises CannotListen."""
    if (port := settings.output.metrics_port) is None:
        return say, nullcontext()
    from turnout.launcher.agent.metrics import Metrics

    metrics = Metrics(settings.meeting.run)

    def both(what: str, fields: Mapping[str, object]) -> None:
        metrics.told(what, fields)
        say(what, fields)

    try:
        return both, metrics.serve(address, port)
    except OSError as error:
        raise CannotListen(f"cannot serve metrics at {address}:{port}: {error.strerror}") from error


async def arbiter_of(settings: Settings) -> RoundLock | None:
    """Return the job's arbiter, None without one. Raises LockRefused."""
    meeting = settings.meeting
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ARBITER_S
    while True:
        try:
            if meeting.arbiter is LockKind.LEASE:
                from turnout.launcher.rendezvous.locks.lease_lock import LeaseLock

                return await LeaseLock.open(meeting.lease, meeting.run)
            if meeting.arbiter is LockKind.FILE:
                from turnout.launcher.rendezvous.locks.file_lock import FileLock

                return await FileLock.open(Path(meeting.round_dir), meeting.run)
            return None
        except LockUnreachable as error:
            if loop.time() > until_s:
                raise LockRefused(error.arbiter, error.why, "is it there?") from error
            await asyncio.sleep(1.0)


async def _listen(listener: Listener, settings: Settings, endpoint: str | None, address: str) -> tuple[bool, int]:
    """Start to listen. Return whether this agent is the one that the endpoint names, and its port.

    Raises CannotListen.
    """
    meeting = settings.meeting
    host = meeting.is_host if meeting.is_host is not None else _is_host(settings, endpoint)
    if host and endpoint is not None:
        try:
            return True, await listener.open(endpoint, meeting.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or meeting.is_host:
                raise CannotListen(f"cannot listen at {endpoint}:{meeting.port}: {error.strerror}") from error
    named = () if endpoint == address else (meeting.port or PORT,)  # the worker that the endpoint names listens there
    for port in (*named, 0):
        try:
            return host and endpoint is None, await listener.open(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CannotListen(f"cannot listen at {address}: {error.strerror}") from error
    raise CannotListen(f"cannot listen at {address}: no port is free")


def _is_host(settings: Settings, endpoint: str | None) -> bool:
    """True if the endpoint names this agent. Without an endpoint, the first worker coordinates first."""
    if not settings.meeting.host:
        return settings.place.order == 0
    return endpoint is not None and (endpoint == settings.place.address if settings.place.address else is_own(endpoint))


def _processes(settings: Settings, environ: Mapping[str, str]) -> int:
    """Return the number of processes; count devices or CPUs if the command line asks for it. Raises BadSettings."""
    count = settings.processes
    if isinstance(count, int):
        return count
    cpus = len(os.sched_getaffinity(0))
    if count is Devices.CPU:
        return cpus
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    there = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+|renderD\d+", name)]
    nvidia = [name for name in there if name.startswith("nvidia")]
    if count is Devices.XPU:
        devices = len(there) - len(nvidia)
    else:
        devices = len(nvidia) if visible is None else len([name for name in visible.split(",") if name.strip()])
    if not devices and count is not Devices.AUTO:
        raise BadSettings(f"--nproc-per-node={count.value}: there is no such device here")
    return devices or cpus
