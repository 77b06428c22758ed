"""ElasticJobs of DLRover, whose workers meet at a master pod. Source: docs/facts/job-kinds.md 1.1; DL-09 to DL-27.

Differences from DLRover: this controller also creates the workers, so that the end of a master ends no worker; the
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
    ChildRules,
    ControlledJob,
    ControlledKind,
    Counts,
    GangSpec,
    LazyChild,
    NeededChild,
    Object,
    OwnedObjects,
    PodDerivedCondition,
    PodPhase,
    PodState,
    Reason,
    Replica,
    RestartRules,
    Role,
    RunPolicy,
    StatusContext,
    StatusRules,
    StatusTranslation,
    as_mapping,
)
from turnout.jobs.fields import ObjectPart, read_enum
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
COORDINATOR_FLAG = "--coordinator-only"
LABELS = ChildLabels("elasticjob.dlrover/name", "elasticjob.dlrover/replica-type", "elasticjob.dlrover/rank-index")
MAX_MEMORY_STEPS = 2  # by which the memory of a worker is raised; each step is half of the template's request
_NODE_FIELD = "metadata.name"

# Fields of the worker's pod, and of its container, that the master gets, too.
_SHARED = ("volumes", "imagePullSecrets", "serviceAccountName", "automountServiceAccountToken", "securityContext")
_OF_CONTAINER = ("image", "imagePullPolicy", "env", "envFrom", "volumeMounts", "securityContext")
_MASTER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_SHELL_CHARACTERS = set("$`'\"\\;|&")  # characters that a shell would change
# Options of the workers' command line that the coordinator gets, too: without a value, and with one.
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
    """Return the kind ElasticJob with this image for masters of jobs that name none.

    image: "" for the image of the workers. Source: DL-05
    """
    return replace(ELASTICJOB, read=job_reader.refusing(partial(_read, image=image)))


def _read(raw: Object, image: str = "") -> ControlledJob:
    """Return the job of an object. Raises BadJob if it is invalid.

    image: of a master for which the job names none, "" for the workers'.
    """
    meta, part = ObjectPart(raw).part("metadata"), ObjectPart(raw).part("spec")
    job_reader.check_name(meta.value)
    if len(name := meta.text("name")) > MAX_NAME:
        raise BadJob(f"metadata.name has {len(name)} characters: at most {MAX_NAME}, for its master's name is longer")
    spec = elasticjob.read_spec(part)
    if (strategy := spec.distribution_strategy or ALL_REDUCE) != ALL_REDUCE:
        raise BadJob(f"spec.distributionStrategy is {strategy!r:.40}: only {ALL_REDUCE} is run here")
    if (mode := spec.optimize_mode or MODES[0]) not in MODES:
        raise BadJob(f"spec.optimizeMode is {mode!r:.40}: single-job or manual is needed, there is no brain service")
    if unknown := sorted(part.parts_by_name("replicaSpecs").keys() - {MASTER, WORKER}):
        raise BadJob(f"{ROLES}.{unknown[0]:.40} is no role of {ALL_REDUCE}: {WORKER} and {MASTER} are")
    worker, min_workers, max_workers = _read_workers(spec, meta)
    master, coordinates = _read_master(spec.replica_specs.dlrover_master, worker, image)
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=(master, worker),
        policy=RunPolicy(spec.suspend, CleanPods.RUNNING),
        gang=GangSpec(min_workers),
        spec={"coordinates": coordinates, "more_memory": mode == MODES[0]},
        elastic=min_workers < max_workers,
    )


def _read_workers(spec: elasticjob.ElasticJobSpec, meta: ObjectPart) -> tuple[Role, int, int]:
    """Return (role of the workers, min, max of their number), min <= max. Raises BadJob.

    The bounds are those of the owner's annotations, else of --nnodes, else the replicas. Bounds in the wrong order are
    exchanged.
    """
    named = elasticjob.worker_role(spec)
    # The kubelet's policy: that of the template, else the role's, else Never, since failed pods are recreated.
    default = named.spec.restart_policy or Restart.NEVER
    restart = read_enum(named.template.part("spec"), "restartPolicy", Restart, default)
    restart = Restart.NEVER if restart is Restart.EXIT_CODE else restart
    role = job_reader.read_role(named, CONTAINER, None, restart)
    bounds = elasticjob.command_bounds(job_kind.command_words(named.template)) or (role.replicas, role.replicas)
    annotations = meta.text_map("annotations")
    min_workers, max_workers = _count(annotations, MIN_WORKERS, bounds[0]), _count(annotations, MAX_WORKERS, bounds[1])
    role = replace(role, restart=restart, max_restarts=_read_max_restarts(spec.replica_specs.worker, WORKER))
    return role, min(min_workers, max_workers), max(min_workers, max_workers)


def _count(annotations: Mapping[str, str], key: str, default: int) -> int:
    """Return the number of an annotation; `default` if it is missing, or no whole number from 0 to 999,999."""
    text = annotations.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default


def _read_max_restarts(spec: elasticjob.WorkerSpec | elasticjob.MasterSpec, name: str) -> int:
    """Return how often one rank gets a new pod: restartCount or restartCounts, RESTARTS if neither is set.

    name: of the role. Raises BadJob if the two differ. Source: DL-15, DL-16, SD-02
    """
    count, counts, where = spec.restart_count, spec.restart_counts, f"{ROLES}.{name}"
    if count is not None and counts is not None and count != counts:
        raise BadJob(f"{where}.restartCount is {count} and {where}.restartCounts is {counts}: say one of them")
    return next((each for each in (count, counts) if each is not None), RESTARTS)


def _read_master(spec: elasticjob.MasterSpec, worker: Role, image: str) -> tuple[Role, bool]:
    """Return (role of the master, True if our coordinator runs in it). Raises BadJob. Source: DL-21, DL-22

    worker: the role of the workers. image: of a master for which the job names none, "" for the workers'.
    """
    if spec.replicas != 1:
        raise BadJob(f"{ROLES}.{MASTER}.replicas is {spec.replicas}: a job has one master")
    template = ObjectPart(spec.template, f"{ROLES}.{MASTER}.template")
    job_reader.check_template(template)
    containers = template.part("spec").parts("containers")
    if len(containers) > 1 and not any(each.text("name") == CONTAINER for each in containers):
        raise BadJob(f"{template.part('spec').at('containers')}: one container must be named {CONTAINER}")
    runs, restarts = job_kind.command_words(template), _read_max_restarts(spec, MASTER)
    full_template = master_template(template.value, worker, image)
    role = Role(MASTER, 1, full_template, Restart.NEVER, max_restarts=restarts, outside_gang=True)
    return role, not runs or COORDINATOR_FLAG in runs


def name(job: ControlledJob, role: Role, replica: Replica) -> str:
    """Return the name of a replica's pod. Source: DL-26"""
    return pod_name(job, role, replica.number)


def labels(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica's pod. Each pod has a number of its own; a replacement takes over the rank."""
    numbers = {"replica-index": replica.number, "rank-index": replica.index, "relaunch-count": replica.restarts}
    return {**selector(job, role), **{f"elasticjob.dlrover/{key}": str(each) for key, each in numbers.items()}}


def selector(job: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {"app": "dlrover", LABELS.job: job.name, LABELS.role: role.label}


def other_children(job: ControlledJob, _owned: OwnedObjects) -> list[NeededChild]:
    """Return the Services: of the master, and of each rank of the workers. They are built only if they are missing."""
    services: list[NeededChild] = []
    for role in job.roles:
        for index in range(role.replicas):
            service_name, port = (
                (master_host(job), PORT) if role.name == MASTER else (pod_name(job, role, index), WORKER_PORT)
            )
            services.append(
                LazyChild(ChildKey("Service", service_name), partial(_service, job, role, index, service_name, port))
            )
    return services


def _service(job: ControlledJob, role: Role, index: int, service_name: str, port: int) -> Object:
    """Return the Service of one rank, which leads to whichever pod has the rank now. index: the rank."""
    pod_labels = {**selector(job, role), LABELS.index: str(index)}
    ports = [{"name": "dlrover", "port": port}]
    spec = {"clusterIP": "None", "selector": pod_labels, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(job, service_name, pod_labels), "spec": spec}


def part_while_suspended(job: ControlledJob) -> ControlledJob:
    """Return the part of a suspended job that still runs: its master."""
    return replace(job, roles=tuple(role for role in job.roles if role.name == MASTER))


def should_recreate(_job: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return False for a master that reports by exit code 1 that the job has failed; True for every other failed pod.

    The caller bounds how often a pod is recreated.
    """
    return role.name != MASTER or pod.training_container.exit_code != 1


def conditions_of_pods(
    job: ControlledJob, counts: Mapping[str, Counts], owned: OwnedObjects
) -> Sequence[PodDerivedCondition]:
    """Return the condition that follows from the pods' phases, in a list. counts: by the name of the role.

    SUCCEEDED if the master or all workers have succeeded; else RESTARTING if a pod has failed that is not above the
    size of its role; else RUNNING if a worker is active; else the list is empty.
    """
    head = f"{KIND} {job.name}"
    worker = next(role for role in job.roles if role.name == WORKER)
    done = 0 < worker.replicas == counts[WORKER].succeeded
    if done or counts[MASTER].succeeded:
        return [PodDerivedCondition(Reason.SUCCEEDED, f"{head} is successfully completed.")]
    sizes = {role.label: role.replicas for role in job.roles}
    if any(pod.phase is PodPhase.FAILED and 0 <= pod.index < sizes.get(pod.role, 0) for pod in owned.pods):
        return [PodDerivedCondition(Reason.RESTARTING, f"{head} is restarting because pods failed.")]
    return [PodDerivedCondition(Reason.RUNNING, f"{head} is running.")] if counts[WORKER].active else []


_PHASES = (Reason.FAILED, Reason.SUCCEEDED, Reason.SUSPENDED, Reason.RESTARTING, Reason.RUNNING)
_FIELDS = ("phase", "conditions", "replicaStatuses", "startTime", "completionTime")


def _to_core_status(status: Object) -> Object:
    """Return the core status: the status without DLRover's phase."""
    return {key: each for key, each in status.items() if key != "phase"}


def _to_dlrover_status(
    status: Object, _job: ControlledJob | None, owned: OwnedObjects, _moment: StatusContext
) -> Object:
    """Return the core status with DLRover's phase: that of the decisive condition that is true.

    Without such a condition the phase is Pending for a job with pods, else Created.
    """
    true = (each for each in _PHASES if conditions.is_true(conditions.valid_conditions(status), each))
    before = PodPhase.PENDING.value if owned.pods else Reason.CREATED.value
    phase: dict[str, Any] = {"phase": next((each.value for each in true), before)}
    return {**phase, **status}


def pod_name(job: ControlledJob, role: Role, number: int) -> str:
    """Return the name of the pod with this number; for a worker also the name of a Service."""
    return f"{master_host(job)}-{number}" if role.name == MASTER else f"{job.name}-edljob-{role.label}-{number}"


def master_host(job: ControlledJob) -> str:
    """Return the name of the master's Service."""
    return f"elasticjob-{job.name}-{MASTER}"


def master_template(own_template: Object, worker: Role, image: str = "") -> Object:
    """Return the pod template of the master: it runs our coordinator unless the job sets a command or arguments.

    own_template: of the master in the job, {} for none. worker: the role of the workers, whose pod and container
    settings the master gets where it states none; it must have a container named CONTAINER, else ValueError is raised.
    image: of the master if the job names none; "" for the workers' image.
    """
    worker_pod = worker.template["spec"]
    (worker_container,) = [each for each in worker_pod["containers"] if each.get("name") == CONTAINER][:1]
    own_spec = own_template.get("spec") or {}
    own_container, sidecars = _split_containers(own_spec.get("containers") or ())
    shared = {key: worker_container[key] for key in _OF_CONTAINER if key in worker_container} | (
        {"image": image} if image else {}
    )
    command: dict[str, Any] = {"command": ["turnout-run"], "args": [*_coordinator_arguments(worker)]}
    if "command" in own_container or "args" in own_container:
        command = {}
    container = {**shared, "resources": _MASTER_RESOURCES, **command, **own_container, "name": CONTAINER}
    spec = {
        **{key: worker_pod[key] for key in _SHARED if key in worker_pod},
        **own_spec,
        "containers": [container, *sidecars],
    }
    return {**own_template, "spec": spec}


def _split_containers(containers: Sequence[Object]) -> tuple[Object, list[Object]]:
    """Return (container of the master or {}, the other containers). A lone container needs no name."""
    own = [each for each in containers if each.get("name", CONTAINER) == CONTAINER or len(containers) == 1]
    return own[-1] if own else {}, [each for each in containers if each not in own]


def _coordinator_arguments(worker: Role) -> Iterator[str]:
    """Yield the coordinator's arguments: where it listens, and those options of the workers' command that it needs.

    Values with characters of a shell are left out.
    """
    yield from (COORDINATOR_FLAG, f"--rdzv-endpoint=$(POD_IP):{PORT}")
    words = job_kind.command_words(ObjectPart(worker.template))
    named = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    yield from (f"--{name}" for name in _FLAGS if name in named)
    for name in _VALUES:
        value = job_kind.flag_value(words, f"--{name}", f"--{name.replace('-', '_')}")
        if value and not set(value) & _SHELL_CHARACTERS:
            yield f"--{name}={value}"


def pod_spec(job: ControlledJob, role: Role, replica: Replica, _owned: OwnedObjects) -> dict[str, Any]:
    """Return the spec of one replica's pod: with its environment, kept off the nodes that were found faulty, and with
    more memory after OOM kills if the job allows it.
    """
    spec, env = dict(role.template["spec"]), [*_env(job, role, replica)]
    spec["containers"] = [
        _with_prepended_env(each, env, replica, job) if each.get("name") == CONTAINER else each
        for each in spec["containers"]
    ]
    return (
        spec
        if not replica.avoids
        else {**spec, "affinity": _avoiding_nodes(as_mapping(spec.get("affinity")), replica.avoids)}
    )


def _with_prepended_env(container: Object, env: Sequence[Object], replica: Replica, job: ControlledJob) -> Object:
    """Return the training container with variables: `env` first, so that its own variables may refer to them.

    Its own variables of the same names are left out. A pod that ran out of memory gets more, if the job allows it.
    """
    names = {each["name"] for each in env}
    own_variables = [each for each in container.get("env") or () if each.get("name") not in names]
    changed = {**container, "env": [*env, *own_variables]}
    steps = min(replica.oom_kills, MAX_MEMORY_STEPS) if job.spec["more_memory"] else 0
    if not steps or not isinstance(resources := container.get("resources"), Mapping):
        return changed
    return {**changed, "resources": {key: _raise_memory(each, steps) for key, each in resources.items()}}


def _raise_memory(amounts: Any, steps: int) -> Any:
    """Return requests or limits with half of the original memory added for each step.

    amounts: the requests or limits of a container. Invalid or missing memory is left as it is. steps: 1 to
    MAX_MEMORY_STEPS.
    """
    if not isinstance(amounts, Mapping) or "memory" not in amounts:
        return amounts
    try:
        memory_bytes = base_units(amounts["memory"])
    except (BadQuantity, TypeError):
        return amounts
    return {**amounts, "memory": str(memory_bytes * (2 + steps) // 2)}


def _avoiding_nodes(affinity: Object, nodes: Sequence[str]) -> Object:
    """Return the affinity with a requirement that excludes these nodes.

    Its terms are alternatives, so each excludes them.
    """
    exclusions = [{"key": _NODE_FIELD, "operator": "NotIn", "values": [node]} for node in nodes]
    node_affinity = as_mapping(affinity.get("nodeAffinity"))
    required_before = as_mapping(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms_before = [as_mapping(each) for each in _as_list(required_before.get("nodeSelectorTerms"))] or [{}]
    terms = [{**term, "matchFields": [*_as_list(term.get("matchFields")), *exclusions]} for term in terms_before]
    required = {**required_before, "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": required}}


def _as_list(value: Any) -> Sequence[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def _env(job: ControlledJob, role: Role, replica: Replica) -> Iterator[Object]:
    """Yield the variables of one replica's pod: fields of the pod, DLRover's names, and for a worker torchrun's and
    ours.
    """
    for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"), ("NODE_IP", "status.hostIP")):
        yield {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    number, rank, total = str(replica.number), str(replica.index), str(role.replicas)
    address = f"{master_host(job)}:{PORT}"
    values = {"ELASTIC_JOB_NAME": job.name, "JOB_UID": job.uid, "NODE_TYPE": role.label}
    values |= {"NODE_ID": number, "NODE_RANK": rank, "NODE_NUM": total}
    if role.name == WORKER:
        values |= {"WORKER_TYPE": role.label, "WORKER_ID": number, "WORKER_RANK": rank, "WORKER_NUM": total}
        values |= {"RANK": rank, "WORLD_SIZE": total, "DLROVER_MASTER_ADDR": address}
        values |= {"DLROVER_MASTER_SERVICE_TYPE": "grpc", "DLROVER_TRAINING_ELASTIC_MODE": "base"}
        values |= {"GRPC_ENABLE_FORK_SUPPORT": "false", "MONITOR_ENABLED": "true"}
        values["TURNOUT_NAME"] = pod_name(job, role, replica.index)  # the replacement has the name of its rank
        if job.spec["coordinates"]:
            values["PET_RDZV_ENDPOINT"] = address
    yield from ({"name": name, "value": value} for name, value in values.items())


ELASTICJOB = ControlledKind(
    KIND,
    (ELASTIC_JOB.api_version,),
    ELASTIC_JOB.plural,
    CONTAINER,
    job_reader.refusing(_read),
    ChildRules(
        labels,
        selector,
        pod_spec,
        other_children,
        label_keys=LABELS,
        owns=("Pod", "Service"),
        name=name,
        unique_pod_names=True,
    ),
    StatusRules(conditions_of_pods, translation=StatusTranslation(_FIELDS, _to_core_status, _to_dlrover_status)),
    RestartRules(should_recreate=should_recreate, faulty_node_exit_code=FAULTY),
    part_while_suspended=part_while_suspended,
)
