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
MASTER_VARIABLE = "DLROVER_MASTER_ADDR"  # set by ElasticJob; the master of DLRover's own operator is no coordinator
JOB_ID_VARIABLES = ("TURNOUT_JOB", "JOB_UID", "ELASTIC_JOB_NAME", "SLURM_JOB_ID")
_NO_ADDRESS_TEXT = (
    "nothing says where {0} workers meet, so only workers on this machine are found, at {1}:{2}; for several machines "
    "give all of them the same --rdzv-endpoint HOST[:PORT] or --master-addr HOST, --lease or --round-dir"
)
_ETCD = (Backend.ETCD, Backend.ETCD_V2)


def rendezvous_settings(
    chosen: Mapping[str, Any], conf: Mapping[str, Any], bounds: tuple[int, int], environ: Mapping[str, str]
) -> RendezvousSettings:
    """Make the rendezvous settings from the options, the environment and the defaults.

    chosen: parsed values by the option's name without its leading dashes; an option that was not given must be absent.
    conf: values of --rdzv-conf by key; only is_host is read. bounds: (min, max) workers. environ: of the process;
    states the job's id and addresses that no option states. Raises BadCommand for a bad address, and BadSettings if
    settings are missing or contradict each other.
    """
    min_workers, max_workers = bounds
    backend = chosen.get("rdzv-backend", Backend.STATIC)
    is_host = conf.get("is_host")
    if backend is Backend.STATIC and min_workers < max_workers:
        backend = Backend.C10D
    if backend is Backend.STATIC and is_host is None and max_workers > 1 and "node-rank" in chosen:
        is_host = chosen["node-rank"] == 0
    arbiter = _arbiter(chosen, max_workers)
    host, port = _address(chosen, backend, arbiter, max_workers, environ)
    if "is_host" not in conf and environ.get(MASTER_VARIABLE) == f"{host}:{port}":
        is_host = False  # the job's master pod hosts, and no worker
    return RendezvousSettings(
        run=_job_id(chosen, max_workers, environ),
        backend=backend,
        host=host,
        port=port,
        is_host=is_host,
        store_port=chosen.get("master-port", 0) if _is_whole_job(chosen, backend, max_workers) else 0,
        standalone=chosen.get("standalone", False),
        worker_count=chosen.get("wanted"),
        arbiter=arbiter,
        lease=chosen.get("lease", ""),
        round_dir=chosen.get("round-dir", ""),
        token_file=chosen.get("token-file", ""),
        insecure=chosen.get("insecure-no-token", False),
    )


def _job_id(chosen: Mapping[str, Any], max_workers: int, environ: Mapping[str, str]) -> str:
    """Return the job's id: --rdzv-id unless it is "none", else the first of JOB_ID_VARIABLES that is not empty.

    If there is neither, "none" for several workers, and "" for one, which then makes an id of its own. max_workers: the
    largest number of workers.
    """
    given = chosen.get("rdzv-id", "none")
    if given != "none":
        return str(given)
    return next(filter(None, map(environ.get, JOB_ID_VARIABLES)), "" if max_workers == 1 else "none")


def _address(
    chosen: Mapping[str, Any], backend: Backend, arbiter: LockKind, max_workers: int, environ: Mapping[str, str]
) -> tuple[str, int]:
    """Return (host, port) of the first coordinator; host "" if only the arbiter knows it, port 0 for any.

    Sources in this order: a worker that is alone, --rdzv-endpoint, --master-addr and --master-port, MASTER_ADDR, the
    arbiter, pod 0 of the same name, this host. Raises BadCommand for a bad MASTER_PORT, and for a back-end of etcd if
    only this host is left.
    """
    if _is_whole_job(chosen, backend, max_workers):
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


def _is_whole_job(chosen: Mapping[str, Any], backend: Backend, max_workers: int) -> bool:
    """Return True if this worker is the whole job; its processes may then use --master-port.

    With an endpoint it is not, since a second worker may come there as a spare.
    """
    endpoint = "rdzv-endpoint" in chosen and backend not in _ETCD
    return bool(chosen.get("standalone")) or (max_workers == 1 and not endpoint)


def _env_port(environ: Mapping[str, str]) -> int:
    """Return the port in MASTER_PORT; STATIC_PORT if it is not set. Raises BadCommand for text that is no port."""
    text = environ.get("MASTER_PORT", "")
    try:
        return value_types.parse_port(text) if text else STATIC_PORT
    except value_types.BadValue as error:
        raise BadCommand(f"MASTER_PORT is {text!r}: {error}") from error


def _arbiter(chosen: Mapping[str, Any], max_workers: int) -> LockKind:
    """Return the kind of lock that grants rounds: the chosen one, else the one whose option is given.

    max_workers: 1 if this worker is alone, which needs no lock.
    """
    arbiter = chosen.get("arbiter", "auto")
    if arbiter != "auto":
        return LockKind(arbiter)
    if "lease" in chosen:
        return LockKind.LEASE
    if "round-dir" in chosen:
        return LockKind.FILE
    return LockKind.NONE if max_workers == 1 else LockKind.MAJORITY


def worker_index(chosen: Mapping[str, Any], environ: Mapping[str, str]) -> int | None:
    """Return the worker's index: --node-rank, else RANK of a PyTorchJob's pod, else the number in the pod's name.

    RANK of a training process, which also has LOCAL_RANK, is not used. None if none of them gives an index, and if the
    RANK of a PyTorchJob's pod is no number. chosen: values by option.
    """
    if "node-rank" in chosen:
        return int(chosen["node-rank"])
    if "LOCAL_RANK" not in environ and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        text = environ["RANK"]
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
    match = re.fullmatch(r".+-([0-9]{1,5})", environ.get("POD_NAME", ""))
    return int(match[1]) if match and int(match[1]) < MAX_MEMBERS else None


def notes(given: Mapping[str, Given], rendezvous: RendezvousSettings, bounds: tuple[int, int]) -> tuple[StartNote, ...]:
    """List the notes about rendezvous options that are used differently from how they were given.

    given: options as given, by name. bounds: (min, max) workers.
    """
    notes_so_far: list[StartNote] = []
    if rendezvous.standalone and "nnodes" in given and given["nnodes"].value != bounds:
        notes_so_far.append(
            StartNote(given["nnodes"].source, NoteSubject.NO_EFFECT, "a standalone worker is the whole world")
        )
    backend, endpoint = given.get("rdzv-backend"), given.get("rdzv-endpoint")
    if rendezvous.backend.value != (backend.text if backend else Backend.STATIC.value):
        about = backend.source if backend else "--nnodes"
        why = f"static cannot be resized, and {bounds[0]}:{bounds[1]} workers are asked for"
        notes_so_far.append(StartNote(about, NoteSubject.OTHER_BACKEND, why))
    if endpoint and (why := _why_no_endpoint(rendezvous)):
        notes_so_far.append(StartNote(endpoint.source, NoteSubject.NO_EFFECT, why))
    if bounds[1] > 1 and (rendezvous.host, rendezvous.port) == (LOCAL, PORT) and not _names_meeting_place(given):
        nnodes = given["nnodes"].source if "nnodes" in given else "--nnodes"
        notes_so_far.append(StartNote(nnodes, NoteSubject.NO_ADDRESS, _NO_ADDRESS_TEXT.format(bounds[1], LOCAL, PORT)))
    return tuple(notes_so_far)


def _why_no_endpoint(rendezvous: RendezvousSettings) -> str:
    """Explain why the endpoint has no effect; "" if it has one."""
    if rendezvous.standalone:
        return "a standalone worker meets nobody"
    return "the server of etcd is not asked: members meet each other" if rendezvous.backend in _ETCD else ""


def _names_meeting_place(given: Mapping[str, Given]) -> bool:
    """Return True if the user gave the place where the workers meet."""
    return not given.keys().isdisjoint(("rdzv-endpoint", "master-addr", "master-port"))
