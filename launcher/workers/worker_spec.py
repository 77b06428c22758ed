"""Describes what a training process runs, its environment and how it ended.

worker_processes.py starts the processes. The environment is built as torchelastic builds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from string import Template
from typing import Any, TypeAlias

from turnout.launcher.coordinator_messages import Formed, StoredStepReport
from turnout.launcher.env import PARTS, RESTORE, ROUND, WORKER_NUM
from turnout.launcher.errors import BadElasticSpec, LauncherError

MAX_ERROR_LINES = 12  # of a process's error
MAX_ERROR_CHARS = 2_000

# torchrun's meaning of --run-path: the file runs as __main__, and an exception goes to the error file.
RUN_PATH_PROGRAM = """\
import runpy, sys
from torch.distributed.elastic.multiprocessing.errors import record
sys.argv = sys.argv[1:]
def run_script_path():
    runpy.run_path(sys.argv[0], run_name="__main__")
record(run_script_path)()
"""


class StillRunning(LauncherError):
    """A round was started while processes of the last round are alive. Stop them first."""


class CommandKind(StrEnum):
    """The kind of the first word of a command."""

    SCRIPT = "script"
    MODULE = "module"  # -m
    BARE = "no-python"  # a program of its own
    RUN_PATH = "run-path"


@dataclass(frozen=True, slots=True)
class Stream:
    """The destination of one output of a process."""

    file: str = ""  # "" for the agent's own output
    prefix: str | None = None  # repeat every line on the agent's output after this text; None: do not repeat
    filtered: str = ""  # a file for repeated lines that contain one of the needles, "" for none
    needles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """Describes one training process to start: its command, environment, outputs and CPUs."""

    local_rank: int
    argv: tuple[str, ...]  # a script, module or program, and its arguments
    env: Mapping[str, str]  # its whole environment
    how: CommandKind = CommandKind.SCRIPT
    python: str = ""  # interpreter, "" for the agent's
    cwd: str = ""  # "" for the agent's
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)
    error_file: str = ""  # for an exception as JSON, "" for none
    cpus: tuple[int, ...] = ()  # CPUs it may use, () for all


@dataclass(frozen=True, slots=True)
class Exited:
    """A training process that has ended, with its exit code or signal and its error."""

    local_rank: int
    pid: int
    code: int  # exit code 0 to 255, or minus the signal's number
    signal: str = ""  # the signal's name, or ""
    error: str = ""  # the first lines of its error file
    error_file: str = ""
    stuck: bool = False  # it was killed, but the kernel does not let it end

    @property
    def has_failed(self) -> bool:
        """True if it ended with anything but exit code 0."""
        return self.code != 0

    def __str__(self) -> str:
        ending = "does not go" if self.stuck else f"ended by {self.signal}" if self.signal else f"exit code {self.code}"
        text = f"process {self.local_rank} (pid {self.pid}): {ending}"
        return f"{text}: {self.error}" if self.error else text


def command(spec: SpawnSpec, python: str) -> tuple[str, ...]:
    """Return the command that runs this process in a fresh interpreter, or its program.

    python: the agent's interpreter. It runs the process if the spec names none, and always for RUN_PATH.
    """
    unbuffered = (spec.python or python, "-u")
    match spec.how:
        case CommandKind.BARE:
            return spec.argv
        case CommandKind.MODULE:
            return (*unbuffered, "-m", *spec.argv)
        case CommandKind.RUN_PATH:
            return (python, "-u", "-c", RUN_PATH_PROGRAM, *spec.argv)
        case CommandKind.SCRIPT:
            return (*unbuffered, *spec.argv)


def arguments_of_rank(argv: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Return the arguments of one process: `${local_rank}` is replaced, like in torchelastic; every other $ stays."""
    return tuple(Template(word).safe_substitute(local_rank=local_rank) for word in argv)


def error_text(raw: bytes) -> str:
    """Return the first lines of an error file of torch's `@record`, "" if it is empty.

    raw: the file's bytes. Text that is not such JSON is returned as it is.
    """
    try:
        content = json.loads(raw)
    except ValueError:
        return _cut(raw.decode(errors="replace"))
    message: Any = content.get("message", content) if isinstance(content, dict) else content
    if not isinstance(message, dict):
        return _cut(str(message))
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    return _cut("\n".join(part for part in (str(message.get("message", "")), _innermost_frames(stack)) if part))


def _innermost_frames(stack: str) -> str:
    """Return the innermost frames of a call stack, without its last line, which the message repeats."""
    frames = [line for line in stack.rstrip().splitlines() if line.startswith("  ")]
    return "\n".join(frames[1 - MAX_ERROR_LINES :])


def _cut(text: str) -> str:
    """Return the first MAX_ERROR_LINES lines of a text, cut to MAX_ERROR_CHARS."""
    lines = text.strip().splitlines()
    return "\n".join(lines[:MAX_ERROR_LINES])[:MAX_ERROR_CHARS]


# Read when an interpreter starts or a library is imported: a parent that imports ahead has read it already.
_READ_AT_IMPORT = frozenset(["LANG", "GLIBC_TUNABLES", "NUMEXPR_MAX_THREADS", "NUMEXPR_NUM_THREADS", "CC", "CXX"])

_PREFIXES_READ_AT_IMPORT = (
    *("PYTHON", "LD_", "LC_", "MALLOC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_"),
    *("CUDA_", "HIP_", "ROCR_", "GPU_", "ZE_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_"),
)

_READ_LATER = ("TORCH_NCCL_", "TORCH_ELASTIC_", "PYTHON_EXEC")  # read by a constructor, or not by the process at all


@dataclass(frozen=True, slots=True)
class JobVariables:
    """Values that are the same for every process of a job in every round."""

    run: str  # the job's id
    role: str = "default"
    max_restarts: int = 0
    virtual_local_rank: bool = False  # each process sees only its own device, as number 0
    most_workers: int = 1  # in its largest world


def common_environment(own: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the environment variables that all processes of an agent share.

    own: the agent's environment. processes: how many it starts. If several, OMP_NUM_THREADS is 1 unless the user set
    it, since they would compete for the cores.
    """
    env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **own}
    if processes > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


def process_environment(
    shared: Mapping[str, str],
    job: JobVariables,
    formed: Formed,
    processes: int,
    local_rank: int,
    *,
    error_file: str = "",
) -> dict[str, str]:
    """Build the whole environment of one process.

    shared: from `common_environment`. processes: how many this agent has.

    The restart count is the job's, the same on every agent. Raises BadElasticSpec if `virtual_local_rank` has no device
    for it.
    """
    rank, size = str(formed.first_rank + local_rank), str(formed.ranks)
    env = {
        **shared,
        **_for_dlrover(shared, job, formed),
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": rank,
        "GROUP_RANK": str(formed.group_rank),
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": str(processes),
        "WORLD_SIZE": size,
        "GROUP_WORLD_SIZE": str(formed.group_size),
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": formed.master_address,
        "MASTER_PORT": str(formed.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(formed.budget.total),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_RUN_ID": job.run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        ROUND: str(formed.round),
        RESTORE: str(-1 if formed.saved_by else formed.restore_step),
        PARTS: f"{formed.restore_step} of {formed.saved_by} in {formed.saved_round}" if formed.saved_by else "",
    }
    return env | (_one_device(shared, local_rank) if job.virtual_local_rank else {})


def _for_dlrover(shared: Mapping[str, str], job: JobVariables, formed: Formed) -> dict[str, str]:
    """Return the variables that DLRover's scripts read, unless the pod sets them.

    DLRover's ElasticTrainer divides WORKER_NUM by the world size and fails below 1. So a number smaller than the world
    is replaced. Source: docs/facts/dlrover.md 8
    """
    rank, worker_num = str(formed.group_rank), shared.get(WORKER_NUM, "")
    words = {"NODE_RANK": rank, "WORKER_RANK": rank, "NODE_NUM": str(formed.group_size)}
    enough = re.fullmatch(r"[0-9]{1,9}", worker_num) is not None and int(worker_num) >= formed.group_size
    number = worker_num if enough else str(max(job.most_workers, formed.group_size))
    return {name: shared.get(name) or value for name, value in words.items()} | {WORKER_NUM: number}


def _one_device(shared: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return variables that show the process only the device of its local rank, as device 0.

    Raises BadElasticSpec if CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) lists fewer devices.
    """
    name = "HIP_VISIBLE_DEVICES" if shared.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    if (visible := shared.get(name)) is None:
        return {"LOCAL_RANK": "0", name: str(local_rank)}
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise BadElasticSpec(f"process {local_rank} has no device: {name} is {visible!r}")
    return {"LOCAL_RANK": "0", name: devices[local_rank].strip()}


def is_read_at_import(name: str) -> bool:
    """Return True if this variable is read once, when an interpreter starts or a library is imported."""
    if name.startswith(_READ_LATER):
        return False
    return name in _READ_AT_IMPORT or name.startswith(_PREFIXES_READ_AT_IMPORT)


def why_not_forkable(spec: SpawnSpec, forkserver_env: Mapping[str, str], python: str) -> str:
    """Return the reason why a process cannot be forked from the pre-imported forkserver, "" if it can.

    forkserver_env: the forkserver's environment. python: its interpreter.
    """
    if spec.how in (CommandKind.BARE, CommandKind.RUN_PATH):
        return f"--{spec.how.value}"
    if spec.python and spec.python != python:
        return f"another interpreter: {spec.python}"
    if spec.cpus and "OMP_NUM_THREADS" not in spec.env:
        return "bound to CPUs without OMP_NUM_THREADS: libraries count their threads at import"
    names = sorted(
        name for name in forkserver_env.keys() | spec.env.keys() if forkserver_env.get(name) != spec.env.get(name)
    )
    if differing := [name for name in names if is_read_at_import(name)]:
        return f"read at import and different: {', '.join(differing)}"
    return ""


# Called with the step that this member sees in storage; returns the step that all members read.
AgreeStored: TypeAlias = Callable[[StoredStepReport], Awaitable[StoredStepReport]]
