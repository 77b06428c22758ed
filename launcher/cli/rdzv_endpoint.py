"""Decides where the members of a job meet: the job's id, the first coordinator's address, and the arbiter.

A job under a controller needs no option for it, since the environment of its pods is enough. Source: DL-38, PE-13..16
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from turnout.launcher.cli import value_types
from turnout.launcher.cli.parser import BadCommand, Given
from turnout.launcher.model import MAX_MEMBERS, PORT
from turnout.launcher.settings import Backend, LockKind, NoteSubject, RendezvousSettings, StartNote

STATIC_PORT = 29_500  # torchrun's default, for an address without --rdzv-endpoint
LOCAL = "127.0.0.1"
MASTER = "DLROVER_MASTER_ADDR"  # of an ElasticJob; that of DLRover's own operator coordinates nothing here
JOB_IDS = ("TURNOUT_JOB", "JOB_UID", "ELASTIC_JOB_NAME", "SLURM_JOB_ID")
_NOWHERE = (
    "nothing says where {0} workers meet, so only workers on this machine are found, at {1}:{2}; for several machines "
    "give all of them the same --rdzv-endpoint HOST[:PORT] or --master-addr HOST, --lease or --round-dir"
)
_ETCD = (Backend.ETCD, Backend.ETCD_V2)


def rendezvous_settings(
    chosen: Mapping[str, Any], conf: Mapping[str, Any], bounds: tuple[int, int], environ: Mapping[str, str]
) -> RendezvousSettings:
    """Make the rendezvous settings. chosen: values by option. conf: values by key of --rdzv-conf. Raises BadSettings,
    BadCommand.
    """
    least, most = bounds
    backend = chosen.get("rdzv-backend", Backend.STATIC)
    is_host = conf.get("is_host")
    if backend is Backend.STATIC and least < most:
        backend = Backend.C10D
    if backend is Backend.STATIC and is_host is None and most > 1 and "node-rank" in chosen:
        is_host = chosen["node-rank"] == 0
    arbiter = _arbiter(chosen, most)
    host, port = _address(chosen, backend, arbiter, most, environ)
    if "is_host" not in conf and environ.get(MASTER) == f"{host}:{port}":
        is_host = False  # the job's master pod hosts, and no worker
    return RendezvousSettings(
        run=_run(chosen, most, environ),
        backend=backend,
        host=host,
        port=port,
        is_host=is_host,
        store_port=chosen.get("master-port", 0) if _meets_nobody(chosen, backend, most) else 0,
        standalone=chosen.get("standalone", False),
        worker_count=chosen.get("wanted"),
        arbiter=arbiter,
        lease=chosen.get("lease", ""),
        round_dir=chosen.get("round-dir", ""),
        token_file=chosen.get("token-file", ""),
        insecure=chosen.get("insecure-no-token", False),
    )


def _run(chosen: Mapping[str, Any], most: int, environ: Mapping[str, str]) -> str:
    """Return the job's id. A single worker without one gets "", and makes its own."""
    given = chosen.get("rdzv-id", "none")
    if given != "none":
        return str(given)
    return next(filter(None, map(environ.get, JOB_IDS)), "" if most == 1 else "none")


def _address(
    chosen: Mapping[str, Any], backend: Backend, arbiter: LockKind, most: int, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Return where the first coordinator listens. A more explicit source overrides the others. Raises BadCommand."""
    if _meets_nobody(chosen, backend, most):
        return LOCAL, 0
    if "rdzv-endpoint" in chosen and backend not in _ETCD:
        host, port = chosen["rdzv-endpoint"]
        return host, port
    master_address = environ.get("MASTER_ADDR", "")
    if "master-addr" in chosen or "master-port" in chosen:
        return chosen.get("master-addr") or master_address or LOCAL, chosen.get("master-port", _env_port(environ))
    if master_address:
        return master_address, _env_port(environ)
    if arbiter in (LockKind.LEASE, LockKind.FILE):
        return "", PORT
    if first := re.fullmatch(r"(.+-)[0-9]{1,5}", environ.get("POD_NAME", "")):
        return f"{first[1]}0", PORT
    if backend in _ETCD:
        raise BadCommand(
            f"--rdzv-backend {backend.value}: its server is not asked, so the workers need another place to meet: "
            "give --master-addr, --lease or --round-dir"
        )
    return LOCAL, PORT


def _meets_nobody(chosen: Mapping[str, Any], backend: Backend, most: int) -> bool:
    """Return True if this worker is the whole job; its processes may then use --master-port.

    With an endpoint it is not, since a second worker may come there as a spare.
    """
    endpoint = "rdzv-endpoint" in chosen and backend not in _ETCD
    return bool(chosen.get("standalone")) or (most == 1 and not endpoint)


def _env_port(environ: Mapping[str, str]) -> int:
    """Return the port in MASTER_PORT; STATIC_PORT if it is not set. Raises BadCommand for text that is no port."""
    text = environ.get("MASTER_PORT", "")
    try:
        return value_types.port(text) if text else STATIC_PORT
    except value_types.BadValue as error:
        raise BadCommand(f"MASTER_PORT is {text!r}: {error}") from error


def _arbiter(chosen: Mapping[str, Any], most: int) -> LockKind:
    """Return the kind of lock that grants rounds: the chosen one, else the one whose option is given.

    most: the largest number of workers; a single worker needs no lock.
    """
    arbiter = chosen.get("arbiter", "auto")
    if arbiter != "auto":
        return LockKind(arbiter)
    if "lease" in chosen:
        return LockKind.LEASE
    if "round-dir" in chosen:
        return LockKind.FILE
    return LockKind.NONE if most == 1 else LockKind.MAJORITY


def order(chosen: Mapping[str, Any], environ: Mapping[str, str]) -> int | None:
    """Return the worker's index: the given one, a PyTorchJob's RANK (not a training process's), or its pod's number."""
    if "node-rank" in chosen:
        return int(chosen["node-rank"])
    if "LOCAL_RANK" not in environ and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        text = environ["RANK"]
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
    found = re.fullmatch(r".+-([0-9]{1,5})", environ.get("POD_NAME", ""))
    return int(found[1]) if found and int(found[1]) < MAX_MEMBERS else None


def notes(given: Mapping[str, Given], rendezvous: RendezvousSettings, bounds: tuple[int, int]) -> tuple[StartNote, ...]:
    """List the notes about rendezvous options that are used differently from how they were given."""
    found: list[StartNote] = []
    if rendezvous.standalone and "nnodes" in given and given["nnodes"].value != bounds:
        found.append(StartNote(given["nnodes"].source, NoteSubject.NO_EFFECT, "a standalone worker is the whole world"))
    backend, endpoint = given.get("rdzv-backend"), given.get("rdzv-endpoint")
    requested = backend.text if backend else Backend.STATIC.value
    if rendezvous.backend.value != requested:
        about = backend.source if backend else "--nnodes"
        why = f"static cannot be resized, and {bounds[0]}:{bounds[1]} workers are asked for"
        found.append(StartNote(about, NoteSubject.OTHER_BACKEND, why))
    if endpoint and (why := _why_no_endpoint(rendezvous)):
        found.append(StartNote(endpoint.source, NoteSubject.NO_EFFECT, why))
    if bounds[1] > 1 and (rendezvous.host, rendezvous.port) == (LOCAL, PORT) and not _named(given):
        nnodes = given["nnodes"].source if "nnodes" in given else "--nnodes"
        found.append(StartNote(nnodes, NoteSubject.NO_ADDRESS, _NOWHERE.format(bounds[1], LOCAL, PORT)))
    return tuple(found)


def _why_no_endpoint(rendezvous: RendezvousSettings) -> str:
    """Explain why the endpoint has no effect; "" if it has one."""
    if rendezvous.standalone:
        return "a standalone worker meets nobody"
    return "the server of etcd is not asked: members meet each other" if rendezvous.backend in _ETCD else ""


def _named(given: Mapping[str, Given]) -> bool:
    """Return True if the user gave the place where the workers meet."""
    return not given.keys().isdisjoint(("rdzv-endpoint", "master-addr", "master-port"))
