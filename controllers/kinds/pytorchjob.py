"""PyTorchJobs. Source: docs/facts/job-kinds.md 1.2; contract PE-17 to PE-48, SD-12 to SD-14.

What differs from the Training Operator 1.8.1: a masterless elastic job's other workers wait for worker 0 (VE-25), its
port is 29400 unless the user says so (SD-14), PET_STANDALONE is 1 (SD-13), the names that users' guides give are set
beside those that torchrun reads (SD-12), PYTHONUNBUFFERED is the user's where it is set (PE-43), a name that is waited
for may stand in /etc/hosts, and a job that fails for good has a completionTime, without which no TTL ever ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnout.controllers.children import REPLICA_INDEX, REPLICA_TYPE, name_of, owner, service
from turnout.controllers.model import (
    CleanPods,
    Counts,
    Gang,
    JobView,
    Kind,
    Object,
    Reason,
    Refused,
    Restart,
    Role,
    RunPolicy,
    Verdict,
)
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

KIND, CONTAINER, PORT_NAME = "PyTorchJob", "pytorch", "pytorchjob-port"
APIS = ("kubeflow.org/v1", "ctyun.cn/v1")
PORT, ELASTIC_PORT = 23456, 29400
OPERATOR = "kubeflow.org/training-operator"
INIT_IMAGE = "alpine:3.10"
INIT_TRIES = 100
MOST_REPLICAS = 10_000  # of a role; a look builds them all
_ROLES = {"master": "Master", "worker": "Worker"}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABELS = "training.kubeflow.org/"
_MOST_S = 2**31 - 1


def read(raw: Object) -> JobView | Refused:
    """Read one, its defaults filled in; Refused names the field that cannot be obeyed."""
    try:
        return _read(raw)
    except BadJob as error:
        return Refused(str(error))


def _read(raw: Object) -> JobView:
    meta, spec = raw["metadata"], Part(raw).part("spec")
    if not _NAME.fullmatch(meta["name"]):
        raise BadJob(f"metadata.name is {meta['name']!r:.70}: it must be a DNS label that begins with a letter")
    policy, elastic = spec.part("runPolicy"), spec.has("elasticPolicy")
    roles = tuple(_role(name, part, elastic) for name, part in sorted(_by_role(spec).items()))
    if not roles:
        raise BadJob("spec.pytorchReplicaSpecs is missing: a Master or Workers are needed")
    worker = next((role for role in roles if role.name == "Worker"), None)
    if elastic and worker is None:
        raise BadJob("spec.pytorchReplicaSpecs.Worker is missing: spec.elasticPolicy needs it")
    if spec.has("nprocPerNode") and spec.part("elasticPolicy").has("nProcPerNode"):
        raise BadJob("spec.elasticPolicy.nProcPerNode must not be used with spec.nprocPerNode")
    filled: dict[str, Any] = {"nprocPerNode": spec.text("nprocPerNode")}
    if elastic and worker is not None:
        filled["elasticPolicy"] = _elastic(spec.part("elasticPolicy"), worker.replicas)
    if not filled["nprocPerNode"] and not spec.part("elasticPolicy").has("nProcPerNode"):
        filled["nprocPerNode"] = "auto"
    return JobView(
        api_version=raw["apiVersion"],
        kind=KIND,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        roles=roles,
        policy=RunPolicy(
            policy.flag("suspend"),
            _word(policy, "cleanPodPolicy", CleanPods, CleanPods.NONE),
            _seconds(policy, "ttlSecondsAfterFinished"),
            _seconds(policy, "activeDeadlineSeconds"),
            _seconds(policy, "backoffLimit"),
        ),
        gang=_gang(policy.part("schedulingPolicy"), roles, filled.get("elasticPolicy")),
        spec=filled,
        elastic=elastic,
        elsewhere=other if (other := policy.text("managedBy")) not in ("", OPERATOR) else "",
    )


def _by_role(spec: Part) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for name, part in spec.by_name("pytorchReplicaSpecs").items():
        if (role := _ROLES.get(name.lower())) is None:
            raise BadJob(f"spec.pytorchReplicaSpecs.{name:.40} is no role: Master and Worker are")
        if role in found:
            raise BadJob(f"spec.pytorchReplicaSpecs has {role} twice")
        found[role] = part
    return found


def _role(name: str, part: Part, elastic: bool) -> Role:
    replicas = part.count("replicas", 1)
    if replicas > MOST_REPLICAS:
        raise BadJob(f"{part.at('replicas')} is {replicas}: at most {MOST_REPLICAS} are made")
    if name == "Master" and replicas != 1:
        raise BadJob(f"{part.at('replicas')} is {replicas}: a job has one Master")
    template = part.part("template")
    _check_template(template)
    containers = template.part("spec").parts("containers")
    if not any(each.text("name") == CONTAINER for each in containers):
        where = template.part("spec").at("containers")
        raise BadJob(f"{where}: one container must be named {CONTAINER}")
    for each in containers:
        if not each.text("image"):
            raise BadJob(f"{each.at('image')} is missing")
    port = ELASTIC_PORT if elastic and name == "Worker" else PORT
    restart = _word(part, "restartPolicy", Restart, Restart.ON_FAILURE)
    return Role(name, replicas, _with_port(template.value, port), restart)


def _check_template(template: Part) -> None:
    """Raise BadJob for a template whose fields that we read are not of their types."""
    for named in ("labels", "annotations"):
        template.part("metadata").words(named)
    spec = template.part("spec")
    for each in (*spec.parts("containers"), *spec.parts("initContainers")):
        for env in each.parts("env"):
            env.text("name")
        for port in each.parts("ports"):
            port.text("name")
            port.count("containerPort", 0, 1)


def _with_port(template: Object, port: int) -> Object:
    """Return the template with the rendezvous port on the training container, unless its user has set it."""

    def served(container: Object) -> Object:
        ports = list(container.get("ports") or ())
        if container.get("name") != CONTAINER or any(each.get("name") == PORT_NAME for each in ports):
            return container
        return {**container, "ports": [*ports, {"name": PORT_NAME, "containerPort": port}]}

    spec = template["spec"]
    return {**template, "spec": {**spec, "containers": [served(each) for each in spec["containers"]]}}


def _elastic(policy: Part, replicas: int) -> Object:
    """Read an elastic policy. Its bounds fill one another, or both come from the workers."""
    least = policy.count("minReplicas", 0) or policy.count("min", 0)
    most = policy.count("maxReplicas", 0) or policy.count("max", 0)
    least, most = least or most or replicas, most or least or replicas
    if least > most:
        raise BadJob(f"{policy.at('minReplicas')} is {least}, above {policy.at('maxReplicas')}, which is {most}")
    pairs = [f"{each.text('key')}={each.text('value')}" for each in policy.parts("rdzvConf")]
    return {
        "minReplicas": least,
        "maxReplicas": most,
        "endpoint": (policy.text("rdzvHost"), policy.count("rdzvPort", 0)),
        "backend": policy.text("rdzvBackend") or "c10d",
        "restarts": _seconds(policy, "maxRestarts"),
        "processes": _seconds(policy, "nProcPerNode"),
        "id": policy.text("rdzvId"),
        "conf": ",".join(pairs),
        "standalone": policy.flag("standalone"),
        "metrics": [each.value for each in policy.parts("metrics")],
    }


def _gang(policy: Part, roles: Sequence[Role], elastic: Any) -> Gang:
    """Return what the PodGroup says: the pods without which an elastic job does not start, else all (VE-16)."""
    least = sum(role.replicas for role in roles if not elastic or role.name != "Worker")
    least += elastic["minReplicas"] if elastic else 0
    return Gang(
        policy.count("minAvailable", 0) or least,
        policy.text("queue"),
        policy.text("priorityClass"),
        policy.part("minResources").value or None,
        _seconds(policy, "scheduleTimeoutSeconds"),
    )


def _word(part: Part, key: str, words: type[Any], default: Any) -> Any:
    text = part.text(key)
    try:
        return words(text) if text else default
    except ValueError:
        raise BadJob(
            f"{part.at(key)} is {text!r:.40}: one of {', '.join(each.value for each in words)} is needed"
        ) from None


def _seconds(part: Part, key: str) -> int | None:
    if not part.has(key):
        return None
    value = part.value[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_S:
        raise BadJob(f"{part.at(key)} is {value!r:.40}: a whole number from 0 is needed")
    return value


def labels(view: JobView, role: Role, index: int) -> dict[str, str]:
    """Return the labels of one replica."""
    found = {**selector(view, role), REPLICA_INDEX: str(index)}
    lead = role.name == "Master" if _master(view) is not None else index == 0
    return {**found, f"{_LABELS}job-role": "master"} if lead else found


def selector(view: JobView, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    name = {f"{_LABELS}job-name": view.name, f"{_LABELS}operator-name": "pytorchjob-controller"}
    return {**name, REPLICA_TYPE: role.label}


def pod_spec(view: JobView, role: Role, index: int) -> dict[str, Any]:
    """Return the pod's spec with what the job's processes have to know of one another."""
    spec = dict(role.template["spec"])
    told = _env(view, role, index)
    spec["containers"] = [_with_env(each, told) for each in spec["containers"]]
    if (first := _waits_for(view, role, index)) is not None:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _init(first)]
    return spec


def _with_env(container: Object, told: Sequence[Object]) -> Object:
    own = list(container.get("env") or ())
    named = {each.get("name") for each in own}
    buffered = [] if "PYTHONUNBUFFERED" in named else [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    return {**container, "env": [*own, *buffered, *told]}


def _env(view: JobView, role: Role, index: int) -> list[Object]:
    """Return the environment of one replica, in the order of the Training Operator."""
    total, processes = sum(each.replicas for each in view.roles), view.spec["nprocPerNode"]
    found: list[tuple[str, str]] = []
    if (master := _master(view)) is not None:
        port, host = str(_port(master)), name_of(view, master, 0)
        rank = str(index + (role.name == "Worker"))
        world = total * (int(processes) if processes.isascii() and processes.isdigit() else 1)
        found += [("MASTER_PORT", port), ("PET_MASTER_PORT", port), ("MASTER_ADDR", host), ("PET_MASTER_ADDR", host)]
        found += [("WORLD_SIZE", str(world)), ("RANK", rank), ("PET_NODE_RANK", rank)]
    if processes:
        found.append(("PET_NPROC_PER_NODE", processes))
    found += _elastic_env(view) if view.elastic else [("PET_NNODES", str(total))]
    return [{"name": name, "value": value} for name, value in found]


def _elastic_env(view: JobView) -> list[tuple[str, str]]:
    policy, worker = view.spec["elasticPolicy"], next(role for role in view.roles if role.name == "Worker")
    host, port = policy["endpoint"]
    nodes = f"{policy['minReplicas']}:{policy['maxReplicas']}"
    found = [
        ("PET_RDZV_ENDPOINT", f"{host or name_of(view, worker, 0)}:{port or _port(worker)}"),
        ("PET_RDZV_BACKEND", policy["backend"]),
        ("PET_NNODES", nodes),
        ("PET_NODES", nodes),
    ]
    if policy["restarts"] is not None:
        found.append(("PET_MAX_RESTARTS", str(policy["restarts"])))
    if policy["processes"] is not None:
        found.append(("PET_NPROC_PER_NODE", str(policy["processes"])))
    processes = view.spec["nprocPerNode"] if policy["processes"] is None else str(policy["processes"])
    optional = {"PET_N_PROC_PER_NODE": processes, "PET_RDZV_ID": policy["id"], "PET_RDZV_CONF": policy["conf"]}
    found += [(name, value) for name, value in optional.items() if value]
    return [*found, ("PET_STANDALONE", "1")] if policy["standalone"] else found


def _master(view: JobView) -> Role | None:
    return next((role for role in view.roles if role.name == "Master"), None)


def _port(role: Role) -> int:
    """Return the rendezvous port of a role, which every role has."""
    for container in role.template["spec"]["containers"]:
        for port in container.get("ports") or ():
            if container.get("name") == CONTAINER and port.get("name") == PORT_NAME:
                return int(port["containerPort"])
    return PORT


def _waits_for(view: JobView, role: Role, index: int) -> str | None:
    """Return the host that has to resolve before this replica starts."""
    if role.name == "Worker" and (master := _master(view)) is not None:
        return name_of(view, master, 0)
    return name_of(view, role, 0) if view.elastic and index > 0 else None


def _init(host: str) -> Object:
    look = f"if getent hosts {host} || nslookup {host}; then err=0 && break; fi;echo waiting for {host}; sleep 2;"
    tries = f"for i in $(seq {INIT_TRIES}); do {look} done"
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", f"err=1;{tries}; exit $err"],
    }


def extras(view: JobView) -> list[Object]:
    """Return what is wanted beside pods: a headless Service a replica, and the HPA that its metrics ask for."""
    found = [service(PYTORCHJOB, view, role, index) for role in view.roles for index in range(role.replicas)]
    policy = view.spec.get("elasticPolicy") or {}
    if metrics := policy.get("metrics"):
        found.append(_hpa(view, policy, metrics))
    return found


def _hpa(view: JobView, policy: Object, metrics: Any) -> Object:
    spec = {
        "scaleTargetRef": {"kind": KIND, "name": view.name, "apiVersion": view.api_version},
        "minReplicas": policy["minReplicas"],
        "maxReplicas": policy["maxReplicas"],
        "metrics": metrics,
    }
    meta = {"name": view.name, "namespace": view.namespace, "ownerReferences": [owner(view)]}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


def judge(view: JobView, counts: Mapping[str, Counts]) -> list[Verdict]:
    """Say what the pods' phases make of the job. counts: by the name of the role.

    The Master's end is the job's. Without one all workers have to end well, or any of an elastic job.
    """
    found: list[Verdict] = []
    name = f"{KIND} {view.name}"
    for role in view.roles:
        count = counts[role.name]
        if role.name == "Master" or _master(view) is None:
            done = count.succeeded == role.replicas or (view.elastic and count.succeeded > 0)
            if done:
                return [*found, Verdict(Reason.SUCCEEDED, f"{name} is successfully completed.")]
            if count.active:
                found.append(Verdict(Reason.RUNNING, f"{name} is running."))
        if count.failed and role.replicas > count.succeeded + count.active:
            text = f"because {count.failed} {role.name} replica(s) failed."
            if role.restart is Restart.NEVER:
                return [*found, Verdict(Reason.FAILED, f"{name} is failed {text}")]
            found.append(Verdict(Reason.RESTARTING, f"{name} is restarting {text}"))
    return found


PYTORCHJOB = Kind(KIND, APIS, "pytorchjobs", CONTAINER, read, labels, selector, pod_spec, extras, judge)
