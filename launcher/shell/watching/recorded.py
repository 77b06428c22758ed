"""In a training process: a thread that sleeps until the agent asks, and then writes what torch has on record.

It can tell while the main thread waits in a collective, for torch lets go of Python's lock there; where somebody holds
that lock it cannot. What is asked of torch is what its own debug server asks. Nothing of it is of a fixed interface:
whatever is missing is told, and nothing is raised into the user's program.
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
from turnout.launcher.health.calls.model import Record
from turnout.launcher.health.calls.reading import reduce, write
from turnout.launcher.health.stacks.model import folded, set_of

_HIGH_FD = 200  # as in start.py
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the first that is set is torch's
_C10D, _CORE = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"


def ear(progress: str | os.PathLike[str]) -> str:
    """The named pipe that the thread sleeps on, beside the file of progress."""
    return f"{os.fspath(progress)}.ask"


def told(progress: str | os.PathLike[str]) -> str:
    """The file that it writes: there whole or not at all."""
    return f"{os.fspath(progress)}.calls"


def listen(progress: str) -> None:
    """Start the thread. A process that cannot have one trains as well without."""
    with contextlib.suppress(OSError, RuntimeError):
        path = ear(progress)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        low = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # to write as well: so it never comes to an end
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
        os.close(low)
        threading.Thread(target=_listen, args=(high, told(progress)), name="turnout-calls", daemon=True).start()


def _listen(file: int, path: str) -> None:
    while True:
        try:
            os.read(file, 64)
        except OSError:  # the script has closed it
            return
        with contextlib.suppress(Exception):  # no room to write, or the folder is gone
            _write(path, write(on_record()))


def _write(path: str, content: bytes) -> None:
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(content)
    os.replace(new, path)


def on_record() -> Record:
    """What torch has on record here now. Imports nothing: of a torch that is not there nothing is on record."""
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
    except Exception as error:  # of any torch
        return Record(why=f"its torch does not tell: {type(error).__name__}: {error}"[:300])
    if not record.groups and not record.sends and not _is_on(core):
        return Record(rank, world, why=f"its Flight Recorder is off: {_SIZES[0]} says how many calls it keeps")
    return Record(rank, world, record.whole, record.groups, record.sends)


def _dumps(c10d: Any, core: Any) -> Iterator[bytes]:
    """One of each recorder: gloo has one, NCCL, and each backend that torch records from outside."""
    nccl = getattr(core, "_dump_nccl_trace_json", None)
    if nccl is not None:
        yield bytes(nccl())
    recorded = getattr(core, "_dump_fr_trace_json", None)
    if recorded is not None:
        yield bytes(recorded())  # gloo's
        for backend in sorted(_backends(c10d) - {"gloo"}):
            with contextlib.suppress(TypeError):  # an older one has no others
                yield bytes(recorded(backend=backend))


def _backends(c10d: Any) -> set[str]:
    """As groups name theirs, `cpu:gloo,cuda:nccl`, and as those name themselves, `nccl2`."""
    names = set[str]()
    with contextlib.suppress(Exception):
        for config in c10d._world.pg_backend_config.values():
            names |= {each.rpartition(":")[2] for each in str(config).split(",")}
    with contextlib.suppress(Exception):
        for group in list(c10d._world.pg_map):
            names |= {group._get_backend(device).name() for device in group._device_types}
    return {name for name in names if name}


def _groups(c10d: Any) -> dict[str, str]:
    """The ranks of each group, by its name, as sets are written. Empty where torch keeps them elsewhere."""
    with contextlib.suppress(Exception):
        names, ranks = dict(c10d._world.pg_names), dict(c10d._world.pg_group_ranks)
        return {str(names[group]): folded(set_of(of)) for group, of in ranks.items() if group in names}
    return {}


def _is_on(core: Any) -> bool:
    """As far as can be seen from outside: a torch that has such hooks keeps 2,000 calls by itself, older ones none."""
    sizes = [os.environ[name] for name in _SIZES if os.environ.get(name)]
    if sizes:
        return sizes[0].isdecimal() and int(sizes[0]) > 0
    return hasattr(core, "FlightRecorderHook")
