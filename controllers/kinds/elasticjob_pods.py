"""The pods of ElasticJobs: a master that coordinates, and workers that know it. Source: docs/facts/dlrover.md 5.3

A worker that lacked memory gets more. A worker whose node was faulty avoids that node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers.model import ChildLabels, JobView, KnownChildren, Object, Replica, Role, as_mapping
from turnout.jobs import command_line
from turnout.jobs.typed_fields import Part
from turnout.kube.errors import BadQuantity
from turnout.kube.quantity import base_units

MASTER, WORKER, CONTAINER = "dlrover-master", "worker", "main"
PORT = 50001  # of the master, as DLRover has it
FLAG = "--coordinator-only"
LABELS = ChildLabels("elasticjob.dlrover/name", "elasticjob.dlrover/replica-type", "elasticjob.dlrover/rank-index")
MOST_STEPS = 2  # of memory, each half of the template's request
_NODE_FIELD = "metadata.name"

_SHARED = ("volumes", "imagePullSecrets", "serviceAccountName", "automountServiceAccountToken", "securityContext")
_OF_CONTAINER = ("image", "imagePullPolicy", "env", "envFrom", "volumeMounts", "securityContext")
_MASTER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
# Options of the workers' command line that the coordinator decides by.
_OF_A_SHELL = set("$`'\"\\;|&")  # characters that a shell would change
_FLAGS = ("network-check", "comm-perf-test", "exclude-straggler", "insecure-no-token")
_VALUES = (
    "precheck",
    "slow-rule",
    "slow-compute-s",
    "slow-collective-s",
    "probe-meet-s",
    "probe-stage-s",
    "on-hang",
    "hang-timeout",
    "stacks-dir",
    "arbiter",
    "lease",
    "round-dir",
    "token-file",
    "rdzv-id",
    "heartbeat-s",
    "silence-s",
)


def pod_name(view: JobView, role: Role, number: int) -> str:
    """Return the name of the pod with this number, and of a worker's Service."""
    return f"{master_host(view)}-{number}" if role.name == MASTER else f"{view.name}-edljob-{role.label}-{number}"


def master_host(view: JobView) -> str:
    """Return the name of the master's Service."""
    return f"elasticjob-{view.name}-{MASTER}"


def master_template(given: Object, worker: Role, image: str = "") -> Object:
    """Return the master's template: our coordinator, except for the fields that the job sets.

    image: of the master if the job names none; "" for the workers' image.
    """
    pod = worker.template["spec"]
    (trains,) = [each for each in pod["containers"] if each.get("name") == CONTAINER][:1]
    own = given.get("spec") or {}
    mine: Object = {}
    sidecars = []
    for each in own.get("containers") or ():
        if each.get("name", CONTAINER) == CONTAINER or len(own["containers"]) == 1:
            mine = each
        else:
            sidecars.append(each)
    shared = {key: trains[key] for key in _OF_CONTAINER if key in trains} | ({"image": image} if image else {})
    runs: dict[str, Any] = {"command": ["turnout-run"], "args": [*_arguments(worker)]}
    if "command" in mine or "args" in mine:
        runs = {}
    container = {**shared, "resources": _MASTER_RESOURCES, **runs, **mine, "name": CONTAINER}
    spec = {**{key: pod[key] for key in _SHARED if key in pod}, **own, "containers": [container, *sidecars]}
    return {**given, "spec": spec}


def _arguments(worker: Role) -> Iterator[str]:
    """Give the coordinator's arguments: where it listens, and what the workers' command line says of its work."""
    yield from (FLAG, f"--rdzv-endpoint=$(POD_IP):{PORT}")
    words = command_line.command_words(Part(worker.template))
    named = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    yield from (f"--{name}" for name in _FLAGS if name in named)
    for name in _VALUES:
        value = command_line.flag_value(words, f"--{name}", f"--{name.replace('-', '_')}")
        if value and not set(value) & _OF_A_SHELL:
            yield f"--{name}={value}"


def pod_spec(view: JobView, role: Role, replica: Replica, _known: KnownChildren) -> dict[str, Any]:
    """Return the pod's spec with what its processes have to know of one another."""
    spec, env = dict(role.template["spec"]), [*_env(view, role, replica)]
    spec["containers"] = [
        _with_env(each, env, replica, view) if each.get("name") == CONTAINER else each for each in spec["containers"]
    ]
    return spec if not replica.avoids else {**spec, "affinity": _away(as_mapping(spec.get("affinity")), replica.avoids)}


def _with_env(container: Object, env: Sequence[Object], replica: Replica, view: JobView) -> Object:
    """Return the training container with its environment, ours first, so that its own may refer to it."""
    names = {each["name"] for each in env}
    own = [each for each in container.get("env") or () if each.get("name") not in names]
    changed = {**container, "env": [*env, *own]}
    steps = min(replica.memory_kills, MOST_STEPS) if view.spec["more_memory"] else 0
    if not steps or not isinstance(given := container.get("resources"), Mapping):
        return changed
    return {**changed, "resources": {key: _more(each, steps) for key, each in given.items()}}


def _more(amounts: Any, steps: int) -> Any:
    """Return requests or limits with more memory."""
    if not isinstance(amounts, Mapping) or "memory" not in amounts:
        return amounts
    try:
        memory_bytes = base_units(amounts["memory"])
    except (BadQuantity, TypeError):
        return amounts
    return {**amounts, "memory": str(memory_bytes * (2 + steps) // 2)}


def _away(affinity: Object, nodes: Sequence[str]) -> Object:
    """Return the affinity without these nodes. Terms are alternatives, so each of them leaves them out."""
    out = [{"key": _NODE_FIELD, "operator": "NotIn", "values": [node]} for node in nodes]
    of_nodes = as_mapping(affinity.get("nodeAffinity"))
    needed = as_mapping(of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution"))
    given = [as_mapping(each) for each in _list(needed.get("nodeSelectorTerms"))] or [{}]
    terms = [{**term, "matchFields": [*_list(term.get("matchFields")), *out]} for term in given]
    required = {**needed, "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**of_nodes, "requiredDuringSchedulingIgnoredDuringExecution": required}}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _env(view: JobView, role: Role, replica: Replica) -> Iterator[Object]:
    """Give the environment of one pod, DLRover's names first."""
    for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"), ("NODE_IP", "status.hostIP")):
        yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    number, rank, total = str(replica.number), str(replica.index), str(role.replicas)
    address = f"{master_host(view)}:{PORT}"
    found = {"ELASTIC_JOB_NAME": view.name, "JOB_UID": view.uid, "NODE_TYPE": role.label}
    found |= {"NODE_ID": number, "NODE_RANK": rank, "NODE_NUM": total}
    if role.name == WORKER:
        found |= {"WORKER_TYPE": role.label, "WORKER_ID": number, "WORKER_RANK": rank, "WORKER_NUM": total}
        found |= {"RANK": rank, "WORLD_SIZE": total, "DLROVER_MASTER_ADDR": address}
        found |= {"DLROVER_MASTER_SERVICE_TYPE": "grpc", "DLROVER_TRAINING_ELASTIC_MODE": "base"}
        found |= {"GRPC_ENABLE_FORK_SUPPORT": "false", "MONITOR_ENABLED": "true"}
        found["TURNOUT_NAME"] = pod_name(view, role, replica.index)  # the replacement has the name of its rank
        if view.spec["coordinates"]:
            found["PET_RDZV_ENDPOINT"] = address
    yield from ({"name": name, "value": value} for name, value in found.items())
