"""The pods of a ColossalAIJob, their keys, the host list, and one headless Service.

Source: docs/facts/job-kinds.md 1.3, where mpi-operator is the model; contract CA-02 to CA-11, CA-19, CA-20, CA-29 to
CA-42.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from turnout.controllers.children import meta_of
from turnout.controllers.model import (
    ChildKey,
    ChildLabels,
    JobPhase,
    JobView,
    KnownChildren,
    Object,
    PodState,
    Replica,
    Role,
)

KIND, LAUNCHER, WORKER = "ColossalAIJob", "launcher", "worker"
_PREFIX = "colossalaijob.batch.tensorstack.dev/"
LABELS = ChildLabels(f"{_PREFIX}name", f"{_PREFIX}replica-type", f"{_PREFIX}replica-index", f"{_PREFIX}mode")
TRAINS, DEBUGGED = "train", "debug"
SSH_PORT = 22
CONFIG, LOG = "/etc/turnout", "/dev/termination-log"
SCRIPT = "launch.py"  # put beside the host list when that is written down: runtime/launch_colossalai.py
ANSWER_S = 600  # seconds until every sshd has to answer
_T9K = "scheduler.tensorstack.dev/"
_DEBUG = ["sleep", "inf"]  # CA-34


def name(view: JobView, role: Role, replica: Replica) -> str:
    """Return a pod's name: the launcher is one."""
    return f"{view.name}-{LAUNCHER}" if role.name == LAUNCHER else f"{view.name}-{WORKER}-{replica.number}"


def labels(view: JobView, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica."""
    mode = TRAINS if view.spec["debug"] is None else DEBUGGED
    found = {**selector(view, role), LABELS.index: str(replica.index), LABELS.mode: mode}
    if view.spec["queue"] is not None:
        found |= {f"{_T9K}group-name": view.name, f"{_T9K}queue": view.spec["queue"], f"{_T9K}role": role.name}
    return found


def selector(view: JobView, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {LABELS.job: view.name, LABELS.role: role.label}


def outdated(view: JobView, pod: PodState) -> bool:
    """True for a pod that was created for debugging while the job trains, or the other way round."""
    return bool(pod.mode) and (pod.mode == DEBUGGED) != (view.spec["debug"] is not None)


def waiting_roles(view: JobView, known: KnownChildren) -> Collection[str]:
    """Return the roles that wait: all for the keys and the host list, the launcher for all workers to run."""
    if ChildKey("ConfigMap", _config(view)) not in known.others:
        return (LAUNCHER, WORKER)
    workers = next(role.replicas for role in view.roles if role.name == WORKER)
    run = sum(
        pod.role == WORKER and pod.phase is JobPhase.RUNNING and not pod.deleting and not outdated(view, pod)
        for pod in known.pods
    )
    return () if run >= workers or view.spec["debug"] is not None else (LAUNCHER,)


def _config(view: JobView) -> str:
    return f"{view.name}-config"


def _secret(view: JobView) -> str:
    return f"{view.name}-ssh-{view.uid[:8].lower()}"


def hosts(view: JobView) -> list[str]:
    """Return the workers' names in the order of their ranks."""
    worker = next(role for role in view.roles if role.name == WORKER)
    return [f"{view.name}-{WORKER}-{index}.{view.name}" for index in range(worker.replicas)]


def extras(view: JobView, known: KnownChildren) -> Sequence[Object]:
    """Return the Service, the host list, and the keys until the host list is there: they are made before it."""
    chosen = {LABELS.job: view.name}
    service = {"clusterIP": "None", "selector": chosen, "publishNotReadyAddresses": True}
    data = {"hostfile": "\n".join(hosts(view)) + "\n"}
    found: list[Object] = [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, view.name, chosen), "spec": service},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_of(view, _config(view), chosen), "data": data},
    ]
    if ChildKey("ConfigMap", _config(view)) in known.others:
        return found
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": meta_of(view, _secret(view), chosen), "type": "Opaque"}
    return [keys, *found]


def pod_spec(view: JobView, role: Role, replica: Replica, _known: KnownChildren) -> dict[str, Any]:
    """Return the spec of the launcher or of a worker, in the job's mode."""
    spec = dict(role.template["spec"])
    override = (view.spec["debug"] or {}).get(role.name) if view.spec["debug"] is not None else _resumed(view, role)
    if override and override["skip"]:
        spec.pop("initContainers", None)
    if view.spec["queue"] is not None:
        spec["schedulerName"] = "t9k-scheduler"
    spec |= {"hostname": name(view, role, replica), "subdomain": view.name}
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(view, role)]
    spec["containers"] = [
        _container(view, role, each, override) if each.get("name") == role.name else each for each in spec["containers"]
    ]
    return spec


def _resumed(view: JobView, role: Role) -> Object | None:
    return view.spec["resume"].get(role.name) if view.spec["resumed"] else None


def _container(view: JobView, role: Role, container: Object, override: Object | None) -> Object:
    changed = {**container, **_command(view, role, override)}
    if "args" not in changed or changed["args"] is None:
        changed.pop("args", None)
    mounts = [{"name": "turnout-ssh", "mountPath": view.spec["ssh"]["path"]}]
    if role.name == LAUNCHER:
        mounts.append({"name": "turnout-config", "mountPath": CONFIG})
        changed["env"] = _with(container.get("env") or (), _of_worker(view))
    else:
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        changed["env"] = _with(container.get("env") or (), [address])
    return {**changed, "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts]}


def _command(view: JobView, role: Role, override: Object | None) -> dict[str, Any]:
    """Return the command of a container: training, or the command of the job's mode."""
    if view.spec["debug"] is not None:
        return {"command": (override or {}).get("command") or _DEBUG, "args": None}
    own = _start(view) if role.name == LAUNCHER else _sshd(view)
    if override and (override["command"] or override["args"]):
        return {"command": override["command"] or own, "args": override["args"] or None}
    return {"command": own, "args": None}


def _sshd(view: JobView) -> list[str]:
    """Return the command of a worker: sshd with the job's own keys, whatever the image has. Source: CA-03, CA-11"""
    path = view.spec["ssh"]["path"]
    options = {
        "HostKey": f"{path}/ssh_host_ecdsa_key",
        "AuthorizedKeysFile": f"{path}/authorized_keys",
        "StrictModes": "no",  # a volume's folder is not its user's own
        "ListenAddress": "$(POD_IP)",
        "PidFile": "none",
    }
    return [
        view.spec["ssh"]["sshd"],
        "-De",
        "-p",
        str(SSH_PORT),
        *(part for each in options.items() for part in ("-o", "=".join(each))),
    ]


def _start(view: JobView) -> list[str]:
    """Return the launcher's command: once every sshd answers, the ColossalAI runner. Source: CA-08, CA-09, CA-22"""
    hostfile = f"{CONFIG}/hostfile"
    wait = ["python3", f"{CONFIG}/{SCRIPT}", hostfile, str(SSH_PORT), str(ANSWER_S), LOG]
    run = ["colossalai", "run", "--hostfile", hostfile, "--nproc_per_node", str(view.spec["processes"])]
    run += ["--master_addr", hosts(view)[0], "--ssh-port", str(SSH_PORT)]
    if view.spec["torch"]:
        run += ["--extra_launch_args", view.spec["torch"]]
    return [*wait, *run, *view.spec["command"]]


def _of_worker(view: JobView) -> list[Object]:
    """Return the worker's variables for the launcher, which takes its own to every host: sshd passes none on.

    Those that name a field of the pod are the worker's alone. Source: CA-19, CA-20
    """
    worker = next(role for role in view.roles if role.name == WORKER)
    (container,) = (each for each in worker.template["spec"]["containers"] if each.get("name") == WORKER)
    return [each for each in container.get("env") or () if not (each.get("valueFrom") or {}).get("fieldRef")]


def _with(own: Sequence[Object], more: Sequence[Object]) -> list[Object]:
    named = {each.get("name") for each in own}
    return [*own, *(each for each in more if each.get("name") not in named)]


def _volumes(view: JobView, role: Role) -> list[Object]:
    found: list[Object] = [{"name": "turnout-ssh", "secret": {"secretName": _secret(view), "defaultMode": 0o600}}]
    if role.name == LAUNCHER:
        found.append({"name": "turnout-config", "configMap": {"name": _config(view)}})
    return found
