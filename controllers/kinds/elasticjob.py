"""ElasticJobs of DLRover, whose workers meet at a master pod. Source: docs/facts/job-kinds.md 1.1; DL-09 to DL-27.

What differs from DLRover: its controller makes the workers too, so a master that dies takes nothing with it; the
master runs our coordinator unless the job names its own command; restart counts have no silent bound (SD-02); the
template's restartPolicy and resources stay as they are. A worker that lacked memory gets more, and a worker whose node
was faulty avoids that node. The environment of pods is that of docs/facts/dlrover.md 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.children import meta_of
from turnout.controllers.kinds import job_reader
from turnout.controllers.model import (
    ChildKey,
    ChildLabels,
    ControlledJob,
    ControlledKind,
    Counts,
    GangSpec,
    JobVerdict,
    LazyChild,
    NeededChild,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    Reason,
    Replica,
    Role,
    RunPolicy,
    StatusContext,
    StatusVocabulary,
    as_mapping,
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import elasticjob, job_kind
from turnout.jobs.kinds.elasticjob import ALL_REDUCE, CONTAINER, ELASTIC_JOB, KIND, MASTER, MAX_NAME, ROLES, WORKER
from turnout.jobs.kinds.job_kind import CleanPods, Restart
from turnout.jobs.model import BadJob
from turnout.kube.errors import BadQuantity
from turnout.kube.labels import MAX_WORKERS, MIN_WORKERS
from turnout.kube.pod_shape import base_units

RESTARTS = 3  # of a worker or a master, unless the job says otherwise
WORKER_PORT = 3333  # of a worker's Service, as DLRover has it
FAULTY = 138  # a launcher's exit code: its check has found the node faulty
MODES = (elasticjob.SINGLE_JOB, "manual", "manunal")  # the last is upstream's spelling
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


def with_master_image(image: str) -> ControlledKind:
    """Return the kind whose masters run in an image of their own, where the job names none. Source: DL-05"""
    return replace(ELASTICJOB, read=job_reader.refusing(partial(_read, image=image)))


def _read(raw: Object, image: str = "") -> ControlledJob:
    """Return the job as the controllers see it. image: of a master without a template. Raises BadJob."""
    meta, part = ObjectPart(raw).part("metadata"), ObjectPart(raw).part("spec")
    job_reader.check_name(meta.value)
    if len(name := meta.text("name")) > MAX_NAME:
        raise BadJob(f"metadata.name has {len(name)} characters: at most {MAX_NAME}, for its master's name is longer")
    spec = elasticjob.read_spec(part)
    if (strategy := spec.distribution_strategy or ALL_REDUCE) != ALL_REDUCE:
        raise BadJob(f"spec.distributionStrategy is {strategy!r:.40}: only {ALL_REDUCE} is run here")
    if (mode := spec.optimize_mode or MODES[0]) not in MODES:
        raise BadJob(f"spec.optimizeMode is {mode!r:.40}: single-job or manual is needed, there is no brain service")
    if unknown := sorted(part.by_name("replicaSpecs").keys() - {MASTER, WORKER}):
        raise BadJob(f"{ROLES}.{unknown[0]:.40} is no role of {ALL_REDUCE}: {WORKER} and {MASTER} are")
    worker, least, most = _read_workers(spec, meta)
    master, coordinates = _read_master(spec.replica_specs.dlrover_master, worker, image)
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=(master, worker),
        policy=RunPolicy(spec.suspend, CleanPods.RUNNING),
        gang=GangSpec(least),
        spec={"coordinates": coordinates, "more_memory": mode == MODES[0]},
        elastic=least < most,
    )


def _read_workers(spec: elasticjob.ElasticJobSpec, meta: ObjectPart) -> tuple[Role, int, int]:
    """Return the workers, and the bounds of their number: by the owner's annotations, else by --nnodes."""
    named = elasticjob.worker_role(spec)
    # The kubelet's policy: that of the template, else the role's, else Never, since failed pods are recreated.
    default = named.spec.restart_policy or Restart.NEVER
    restart = named.template.part("spec").word("restartPolicy", Restart, default)
    restart = Restart.NEVER if restart is Restart.EXIT_CODE else restart
    role = job_reader.role(named, CONTAINER, None, restart)
    bounds = elasticjob.command_bounds(job_kind.command_words(named.template)) or (role.replicas, role.replicas)
    notes = meta.words("annotations")
    least, most = _count(notes, MIN_WORKERS, bounds[0]), _count(notes, MAX_WORKERS, bounds[1])
    role = replace(role, restart=restart, most_restarts=_restarts(spec.replica_specs.worker, WORKER))
    return role, min(least, most), max(least, most)


def _count(notes: Mapping[str, str], key: str, default: int) -> int:
    text = notes.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default


def _restarts(spec: elasticjob.WorkerSpec | elasticjob.MasterSpec, name: str) -> int:
    """Return how often one rank gets a new pod, in either spelling. Source: DL-15, DL-16, SD-02"""
    one, other, where = spec.restart_count, spec.restart_counts, f"{ROLES}.{name}"
    if one is not None and other is not None and one != other:
        raise BadJob(f"{where}.restartCount is {one} and {where}.restartCounts is {other}: say one of them")
    return next((each for each in (one, other) if each is not None), RESTARTS)


def _read_master(spec: elasticjob.MasterSpec, worker: Role, image: str) -> tuple[Role, bool]:
    """Return the master, and whether our coordinator runs in it. Source: DL-21, DL-22"""
    if spec.replicas != 1:
        raise BadJob(f"{ROLES}.{MASTER}.replicas is {spec.replicas}: a job has one master")
    template = ObjectPart(spec.template, f"{ROLES}.{MASTER}.template")
    job_reader.check_template(template)
    containers = template.part("spec").parts("containers")
    if len(containers) > 1 and not any(each.text("name") == CONTAINER for each in containers):
        raise BadJob(f"{template.part('spec').at('containers')}: one container must be named {CONTAINER}")
    runs, restarts = job_kind.command_words(template), _restarts(spec, MASTER)
    full_template = master_template(template.value, worker, image)
    role = Role(MASTER, 1, full_template, Restart.NEVER, most_restarts=restarts, outside_gang=True)
    return role, not runs or FLAG in runs


def name(view: ControlledJob, role: Role, replica: Replica) -> str:
    """Return a pod's name. Source: DL-26"""
    return pod_name(view, role, replica.number)


def labels(view: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one pod: its id is its own, its rank is taken over."""
    numbers = {"replica-index": replica.number, "rank-index": replica.index, "relaunch-count": replica.restarts}
    return {**selector(view, role), **{f"elasticjob.dlrover/{key}": str(each) for key, each in numbers.items()}}


def selector(view: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {"app": "dlrover", LABELS.job: view.name, LABELS.role: role.label}


def extras(view: ControlledJob, _known: OwnedObjects) -> list[NeededChild]:
    """Return the Services: the master's, and one for each rank of the workers."""
    found: list[NeededChild] = []
    for role in view.roles:
        for index in range(role.replicas):
            head, port = (
                (master_host(view), PORT) if role.name == MASTER else (pod_name(view, role, index), WORKER_PORT)
            )
            found.append(LazyChild(ChildKey("Service", head), partial(_service, view, role, index, head, port)))
    return found


def _service(view: ControlledJob, role: Role, index: int, head: str, port: int) -> Object:
    """Return the Service of one rank, whichever pod has it now."""
    chosen = {**selector(view, role), LABELS.index: str(index)}
    ports = [{"name": "dlrover", "port": port}]
    spec = {"clusterIP": "None", "selector": chosen, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, head, chosen), "spec": spec}


def suspended_view(view: ControlledJob) -> ControlledJob:
    """Return the part of a suspended job that still runs: its master."""
    return replace(view, roles=tuple(role for role in view.roles if role.name == MASTER))


def recreate(_view: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return True unless a master reports that the job has failed.

    Failed pods are recreated up to their role's count.
    """
    return role.name != MASTER or pod.exit_code != 1


def judge(view: ControlledJob, counts: Mapping[str, Counts], known: OwnedObjects) -> Sequence[JobVerdict]:
    """Return the conditions that follow from the pods' phases.

    The success of the master, or of all workers, is the job's.
    """
    head = f"{KIND} {view.name}"
    worker = next(role for role in view.roles if role.name == WORKER)
    done = 0 < worker.replicas == counts[WORKER].succeeded
    if done or counts[MASTER].succeeded:
        return [JobVerdict(Reason.SUCCEEDED, f"{head} is successfully completed.")]
    if any(pod.phase is PodPhase.FAILED for pod in known.pods):
        return [JobVerdict(Reason.RESTARTING, f"{head} is restarting because pods failed.")]
    return [JobVerdict(Reason.RUNNING, f"{head} is running.")] if counts[WORKER].active else []


_PHASES = (Reason.FAILED, Reason.SUCCEEDED, Reason.SUSPENDED, Reason.RESTARTING, Reason.RUNNING)
_FIELDS = ("phase", "conditions", "replicaStatuses", "startTime", "completionTime")


def _to_core_status(status: Object) -> Object:
    return {key: each for key, each in status.items() if key != "phase"}


def _to_dlrover_status(
    status: Object, _view: ControlledJob | None, known: OwnedObjects, _moment: StatusContext
) -> Object:
    """Return the status with DLRover's phase."""
    true = (each for each in _PHASES if conditions.is_true(conditions.valid_conditions(status), each))
    before = PodPhase.PENDING.value if known.pods else Reason.CREATED.value
    phase: dict[str, Any] = {"phase": next((each.value for each in true), before)}
    return {**phase, **status}


def pod_name(view: ControlledJob, role: Role, number: int) -> str:
    """Return the name of the pod with this number, and of a worker's Service."""
    return f"{master_host(view)}-{number}" if role.name == MASTER else f"{view.name}-edljob-{role.label}-{number}"


def master_host(view: ControlledJob) -> str:
    """Return the name of the master's Service."""
    return f"elasticjob-{view.name}-{MASTER}"


def master_template(given: Object, worker: Role, image: str = "") -> Object:
    """Return the master's template: our coordinator, except for the fields that the job sets.

    image: of the master if the job names none; "" for the workers' image.
    """
    pod = worker.template["spec"]
    (trains,) = [each for each in pod["containers"] if each.get("name") == CONTAINER][:1]
    own = given.get("spec") or {}
    mine, sidecars = _split_containers(own.get("containers") or ())
    shared = {key: trains[key] for key in _OF_CONTAINER if key in trains} | ({"image": image} if image else {})
    runs: dict[str, Any] = {"command": ["turnout-run"], "args": [*_coordinator_arguments(worker)]}
    if "command" in mine or "args" in mine:
        runs = {}
    container = {**shared, "resources": _MASTER_RESOURCES, **runs, **mine, "name": CONTAINER}
    spec = {**{key: pod[key] for key in _SHARED if key in pod}, **own, "containers": [container, *sidecars]}
    return {**given, "spec": spec}


def _split_containers(containers: Sequence[Object]) -> tuple[Object, list[Object]]:
    """Return the container of the master, which may have no name if it is alone, and the other containers."""
    mine = [each for each in containers if each.get("name", CONTAINER) == CONTAINER or len(containers) == 1]
    return mine[-1] if mine else {}, [each for each in containers if each not in mine]


def _coordinator_arguments(worker: Role) -> Iterator[str]:
    """Give the coordinator's arguments: where it listens, and what the workers' command line says of its work."""
    yield from (FLAG, f"--rdzv-endpoint=$(POD_IP):{PORT}")
    words = job_kind.command_words(ObjectPart(worker.template))
    named = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    yield from (f"--{name}" for name in _FLAGS if name in named)
    for name in _VALUES:
        value = job_kind.flag_value(words, f"--{name}", f"--{name.replace('-', '_')}")
        if value and not set(value) & _OF_A_SHELL:
            yield f"--{name}={value}"


def pod_spec(view: ControlledJob, role: Role, replica: Replica, _known: OwnedObjects) -> dict[str, Any]:
    """Return the pod's spec with what its processes have to know of one another."""
    spec, env = dict(role.template["spec"]), [*_env(view, role, replica)]
    spec["containers"] = [
        _with_env(each, env, replica, view) if each.get("name") == CONTAINER else each for each in spec["containers"]
    ]
    return (
        spec
        if not replica.avoids
        else {**spec, "affinity": _avoiding_nodes(as_mapping(spec.get("affinity")), replica.avoids)}
    )


def _with_env(container: Object, env: Sequence[Object], replica: Replica, view: ControlledJob) -> Object:
    """Return the training container with its environment, ours first, so that its own may refer to it."""
    names = {each["name"] for each in env}
    own = [each for each in container.get("env") or () if each.get("name") not in names]
    changed = {**container, "env": [*env, *own]}
    steps = min(replica.memory_kills, MOST_STEPS) if view.spec["more_memory"] else 0
    if not steps or not isinstance(given := container.get("resources"), Mapping):
        return changed
    return {**changed, "resources": {key: _raise_memory(each, steps) for key, each in given.items()}}


def _raise_memory(amounts: Any, steps: int) -> Any:
    """Return requests or limits with half of the memory added for each step.

    steps: how often the pod ran out of memory. Invalid or missing memory is left as it is.
    """
    if not isinstance(amounts, Mapping) or "memory" not in amounts:
        return amounts
    try:
        memory_bytes = base_units(amounts["memory"])
    except (BadQuantity, TypeError):
        return amounts
    return {**amounts, "memory": str(memory_bytes * (2 + steps) // 2)}


def _avoiding_nodes(affinity: Object, nodes: Sequence[str]) -> Object:
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


def _env(view: ControlledJob, role: Role, replica: Replica) -> Iterator[Object]:
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


ELASTICJOB = ControlledKind(
    KIND,
    (ELASTIC_JOB.api_version,),
    ELASTIC_JOB.plural,
    CONTAINER,
    job_reader.refusing(_read),
    labels,
    selector,
    pod_spec,
    extras,
    judge,
    child_labels=LABELS,
    owns=("Pod", "Service"),
    name=name,
    suspended_view=suspended_view,
    recreate=recreate,
    vocabulary=StatusVocabulary(_FIELDS, _to_core_status, _to_dlrover_status),
    numbered=True,
    faulty_node_exit_code=FAULTY,
)
