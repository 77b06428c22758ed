"""Settings become an agent: who it is, where it listens, whom it asks, what it runs."""

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

from turnout.launcher.errors import BadSettings
from turnout.launcher.health.checks import Checking
from turnout.launcher.model import Exit
from turnout.launcher.rendezvous.arbiter import ArbiterRefused, ArbiterUnreachable
from turnout.launcher.rendezvous.seek import Seek
from turnout.launcher.settings import ArbiterKind, Devices, Settings
from turnout.launcher.shell.agent import Agent
from turnout.launcher.shell.arbiters import Arbiter
from turnout.launcher.shell.hands import Hands
from turnout.launcher.shell.identity import NoDoor, door_at, is_own, member_of, own_address, resolved, token_of
from turnout.launcher.shell.meeting.door import Door
from turnout.launcher.shell.meeting.leading import Leading
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.training import Training
from turnout.launcher.shell.whereabouts import Lookout
from turnout.launcher.wire import PORT

LOOPBACK = "127.0.0.1"
ARBITER_S = 60.0  # for the arbiter to answer at all, at the start


async def attend(
    settings: Settings,
    environ: Mapping[str, str],
    say: Say,
    *,
    training: Hands | None = None,
    ready: Callable[[Callable[[], None]], None] | None = None,
) -> Exit:
    """Take part in a job until it is over. Raises BadSettings, NoDoor and ArbiterRefused before anything is started.

    training: who has the processes, if not we ourselves; ready: given what asks this member to leave, where signals
    are somebody else's.
    """
    if alone := _meets_nobody(settings):
        settings = _alone(settings)
    meeting, place = settings.meeting, settings.place
    endpoint = await resolved(meeting.host) if meeting.host else None
    address = LOOPBACK if alone else place.address or own_address(endpoint)
    token = token_of(meeting, address)
    say, serving = _measured(settings, address, say)
    where = Lookout(environ, place.path, place.path_file, environ.get("TURNOUT_MAP_DIR", ""))
    arbiter = await _arbiter(settings)
    door = Door(token, meeting.run, lambda what, fields: say(what, fields))
    host, port = await _listen(door, settings, endpoint, address)
    processes = _processes(settings, environ)
    copies = door_at(address) if training is None else None
    keeper, store = copies.getsockname()[1] if copies is not None else 0, meeting.store_port
    me = member_of(place, address, port, processes, (await asyncio.to_thread(where.look)).path, keeper, store)
    leading = Leading(
        me, meeting.run, settings.terms, settings.timing, door, say, arbiter=arbiter, hangs=settings.hangs,
        wanted=meeting.wanted or 0, only=meeting.arbiter is ArbiterKind.NONE, checking=_checks(settings),
    )  # fmt: skip
    hands = training or Training(settings, processes, environ, say, socket.gethostname(), copies, token)
    at = (address if alone else meeting.host, port if host else meeting.port)
    seek = Seek(me.id, at if meeting.host else None, host, arbiter is not None, settings.terms.join_timeout_s)
    agent = Agent(settings, me, token, hands, leading, seek, say, where.look)
    if ready is not None:
        ready(agent.leave)
    with serving:
        return await agent.run([] if ready else _signals(settings))


def _signals(settings: Settings) -> list[signal.Signals]:
    return [signal.SIGUSR1, *(signal.Signals[name] for name in settings.start.signals)]


def _checks(settings: Settings) -> Checking | None:
    checks = settings.checks
    if not checks.network:
        return None
    return Checking(checks.limits, checks.exclude_straggler, checks.performance, checks.probing.round_s)


def _meets_nobody(settings: Settings) -> bool:
    """Tell whether this worker is the whole job, and no record of it is kept elsewhere."""
    meeting = settings.meeting
    nowhere = settings.terms.most == 1 and meeting.port == 0 and meeting.arbiter is ArbiterKind.NONE
    return meeting.standalone or (nowhere and meeting.host == LOOPBACK)


def _alone(settings: Settings) -> Settings:
    """One worker, on loopback, whom nobody succeeds."""
    meeting = replace(settings.meeting, host=LOOPBACK, port=0, is_host=True, arbiter=ArbiterKind.NONE)
    return replace(settings, meeting=replace(meeting, run=meeting.run or secrets.token_hex(8)))


def _measured(settings: Settings, address: str, say: Say) -> tuple[Say, AbstractContextManager[object]]:
    """Count what is said, and serve the counts, where a port for them is given."""
    if (port := settings.output.metrics_port) is None:
        return say, nullcontext()
    from turnout.launcher.shell.metrics import Metrics

    metrics = Metrics(settings.meeting.run)

    def both(what: str, fields: Mapping[str, object]) -> None:
        metrics.told(what, fields)
        say(what, fields)

    try:
        return both, metrics.serve(address, port)
    except OSError as error:
        raise NoDoor(f"cannot serve metrics at {address}:{port}: {error.strerror}") from error


async def _arbiter(settings: Settings) -> Arbiter | None:
    meeting = settings.meeting
    loop = asyncio.get_running_loop()
    until_s = loop.time() + ARBITER_S
    while True:
        try:
            if meeting.arbiter is ArbiterKind.LEASE:
                from turnout.launcher.shell.arbiters.lease import LeaseArbiter

                return await LeaseArbiter.open(meeting.lease, meeting.run)
            if meeting.arbiter is ArbiterKind.FILE:
                from turnout.launcher.shell.arbiters.round_file import RoundFileArbiter

                return await RoundFileArbiter.open(Path(meeting.round_dir), meeting.run)
            return None
        except ArbiterUnreachable as error:
            if loop.time() > until_s:
                raise ArbiterRefused(error.arbiter, error.why, "is it there?") from error
            await asyncio.sleep(1.0)


async def _listen(door: Door, settings: Settings, endpoint: str | None, address: str) -> tuple[bool, int]:
    """Open the door. Are we the one whom the endpoint names? And at which port we listen."""
    meeting = settings.meeting
    host = meeting.is_host if meeting.is_host is not None else _is_host(settings, endpoint)
    if host and endpoint is not None:
        try:
            return True, await door.open(endpoint, meeting.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or meeting.is_host:
                raise NoDoor(f"cannot listen at {endpoint}:{meeting.port}: {error.strerror}") from error
    named = () if endpoint == address else (meeting.port or PORT,)  # there the one whom the endpoint names listens
    for port in (*named, 0):
        try:
            return host and endpoint is None, await door.open(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise NoDoor(f"cannot listen at {address}: {error.strerror}") from error
    raise NoDoor(f"cannot listen at {address}: no port is free")


def _is_host(settings: Settings, endpoint: str | None) -> bool:
    """Does the endpoint name us? Where nobody is named, the first worker is the first to coordinate."""
    if not settings.meeting.host:
        return settings.place.order == 0
    return endpoint is not None and (endpoint == settings.place.address if settings.place.address else is_own(endpoint))


def _processes(settings: Settings, environ: Mapping[str, str]) -> int:
    """How many processes, where the command line names only what to count."""
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
