"""Answers the agent in a training process: a thread sleeps until it is asked, then writes torch's records.

It can answer while the main thread waits in a collective, since torch releases the interpreter lock there. It cannot if
another thread holds that lock.
It uses the functions of torch's own debug server, which are no fixed interface. What is missing is reported; nothing is
raised into the user's program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from turnout.launcher.errors import BadStacks
from turnout.launcher.health.flight_recorder.model import Record
from turnout.launcher.health.flight_recorder.parse import reduce, write
from turnout.launcher.health.rank_sets import folded, set_of

_HIGH_FD = 200  # as in instrument.py
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the first that is set is the one torch reads
_C10D, _CORE = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"


def ear(progress: str | os.PathLike[str]) -> str:
    """Return the named pipe on which the thread sleeps, beside the progress file."""
    return f"{os.fspath(progress)}.ask"


def told(progress: str | os.PathLike[str]) -> str:
    """Return the file with the answer, which appears complete."""
    return f"{os.fspath(progress)}.calls"


def listen(progress: str) -> None:
    """Start the thread. If that fails, the process trains without it."""
    with contextlib.suppress(OSError, RuntimeError):
        path = ear(progress)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        low = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # open for writing too, so that the pipe never reaches its end
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
        os.close(low)
        threading.Thread(target=_listen, args=(high, told(progress)), name="turnout-calls", daemon=True).start()


def _listen(file: int, path: str) -> None:
    while True:
        try:
            os.read(file, 64)
        except OSError:  # the script has closed it
            return
        with contextlib.suppress(Exception):  # the disk is full, or the folder is gone
            _write(path, write(on_record()))


def _write(path: str, content: bytes) -> None:
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(content)
    os.replace(new, path)


def on_record() -> Record:
    """Return torch's records of this process. It imports nothing: without torch there is no record."""
    c10d: Any = sys.modules.get(_C10D)
    core: Any = sys.modules.get(_CORE)
    if c10d is None or core is None:
        return Record(why="its torch has no torch.distributed, or has not imported it")
    try:
        if not c10d.is_initialized():
            return Record(why="it has no process group")
        rank, world = c10d.get_rank(), c10d.get_world_size()
        dumps = list(_dumps(c10d, core))
        if not dumps:
            return Record(rank, world, why="its torch has no Flight Recorder that can be read")
        record = reduce(dumps, _groups(c10d), time.time_ns())
    except BadStacks as error:
        return Record(why=str(error)[:300])
    except Exception as error:  # any version of torch may fail here in its own way
        return Record(why=f"its torch does not tell: {type(error).__name__}: {error}"[:300])
    if not record.groups and not record.sends and not _is_on(core):
        return Record(rank, world, why=f"its Flight Recorder is off: {_SIZES[0]} says how many calls it keeps")
    return Record(rank, world, record.whole, record.groups, record.sends)


def _dumps(c10d: Any, core: Any) -> Iterator[bytes]:
    """Give the dump of each recorder: NCCL's, gloo's, and that of each backend that torch records from outside."""
    nccl = getattr(core, "_dump_nccl_trace_json", None)
    if nccl is not None:
        yield bytes(nccl())
    recorded = getattr(core, "_dump_fr_trace_json", None)
    if recorded is not None:
        yield bytes(recorded())  # gloo's
        for backend in sorted(_backends(c10d) - {"gloo"}):
            with contextlib.suppress(TypeError):  # an older version has no other records
                yield bytes(recorded(backend=backend))


def _backends(c10d: Any) -> set[str]:
    """Return the backends' names as process groups know them, such as `cpu:gloo,cuda:nccl`, and as backends call
    themselves.
    """
    names = set[str]()
    with contextlib.suppress(Exception):
        for config in c10d._world.pg_backend_config.values():
            names |= {each.rpartition(":")[2] for each in str(config).split(",")}
    with contextlib.suppress(Exception):
        for group in list(c10d._world.pg_map):
            names |= {group._get_backend(device).name() for device in group._device_types}
    return {name for name in names if name}


def _groups(c10d: Any) -> dict[str, str]:
    """Return folded sets of ranks by group name; empty if this torch keeps them elsewhere."""
    with contextlib.suppress(Exception):
        names, ranks = dict(c10d._world.pg_names), dict(c10d._world.pg_group_ranks)
        return {str(names[group]): folded(set_of(of)) for group, of in ranks.items() if group in names}
    return {}


def _is_on(core: Any) -> bool:
    """True if the Flight Recorder is on, as far as can be seen: torch with hooks keeps 2,000 calls by default, older
    ones none.
    """
    sizes = [os.environ[name] for name in _SIZES if os.environ.get(name)]
    if sizes:
        return sizes[0].isdecimal() and int(sizes[0]) > 0
    return hasattr(core, "FlightRecorderHook")
