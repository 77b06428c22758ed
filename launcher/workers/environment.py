"""Builds the environment of a training process as torchelastic does, and knows which variables are read at import.

It only handles values: the agent's environment and the world are passed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from turnout.launcher.env import PARTS, RESTORE, ROUND, WORKER_NUM
from turnout.launcher.errors import BadElasticSpec
from turnout.launcher.rendezvous.messages import Formed
from turnout.launcher.workers.spawn_spec import CommandKind, SpawnSpec

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

    run: str
    role: str = "default"
    max_restarts: int = 0
    virtual_local_rank: bool = False
    most_workers: int = 1  # in its largest world


def common(own: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the variables that all processes of an agent share. own: the agent's environment. processes: how many it
    starts.

    Several processes get one thread each unless the user set a number, since they would compete for the cores.
    """
    env = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **own}
    if processes > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


def of_process(
    shared: Mapping[str, str],
    job: JobVariables,
    formed: Formed,
    processes: int,
    local_rank: int,
    *,
    error_file: str = "",
) -> dict[str, str]:
    """Build the whole environment of one process. shared: from `common`. processes: how many this agent has.

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
    rank, given = str(formed.group_rank), shared.get(WORKER_NUM, "")
    words = {"NODE_RANK": rank, "WORKER_RANK": rank, "NODE_NUM": str(formed.group_size)}
    enough = re.fullmatch(r"[0-9]{1,9}", given) is not None and int(given) >= formed.group_size
    number = given if enough else str(max(job.most_workers, formed.group_size))
    return {name: shared.get(name) or value for name, value in words.items()} | {WORKER_NUM: number}


def _one_device(shared: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return variables that show the process only one device, as device 0. Raises BadElasticSpec."""
    name = "HIP_VISIBLE_DEVICES" if shared.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    if (visible := shared.get(name)) is None:
        return {"LOCAL_RANK": "0", name: str(local_rank)}
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise BadElasticSpec(f"process {local_rank} has no device: {name} is {visible!r}")
    return {"LOCAL_RANK": "0", name: devices[local_rank].strip()}


def read_at_import(name: str) -> bool:
    """True if this variable is read once, when an interpreter starts or a library is imported."""
    if name.startswith(_READ_LATER):
        return False
    return name in _READ_AT_IMPORT or name.startswith(_PREFIXES_READ_AT_IMPORT)


def why_spawn(order: SpawnSpec, parent: Mapping[str, str], python: str) -> str:
    """Return the reason why a process cannot be forked from the pre-imported parent, "" if it can.

    parent: the parent's environment. python: its interpreter.
    """
    if order.how in (CommandKind.BARE, CommandKind.RUN_PATH):
        return f"--{order.how.value}"
    if order.python and order.python != python:
        return f"another interpreter: {order.python}"
    if order.cpus and "OMP_NUM_THREADS" not in order.env:
        return "bound to CPUs without OMP_NUM_THREADS: libraries count their threads at import"
    names = sorted(name for name in parent.keys() | order.env.keys() if parent.get(name) != order.env.get(name))
    if differing := [name for name in names if read_at_import(name)]:
        return f"read at import and different: {', '.join(differing)}"
    return ""
