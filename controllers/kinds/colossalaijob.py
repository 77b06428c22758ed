"""ColossalAIJobs. Source: docs/facts/job-kinds.md 1.3; contract CA-01 to CA-59.

Workers run sshd and wait; the launcher runs `colossalai run`, which reaches them by SSH. The host list is fixed when
training starts, so a worker that starts again is out of it and the job fails (CA-21). mpi-operator is the model of the
keys, the host list and the one headless Service.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.children import meta_of, with_missing_variables
from turnout.controllers.kinds import job_reader
from turnout.controllers.kinds.colossalaijob_status import TRANSLATION
from turnout.controllers.model import (
    ChildKey,
    ChildLabels,
    ChildRules,
    ControlledJob,
    ControlledKind,
    Counts,
    GangSpec,
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
    StatusRules,
)
from turnout.jobs.fields import ObjectPart, read_enum
from turnout.jobs.kinds import colossalaijob
from turnout.jobs.kinds.colossalaijob import COLOSSALAI_JOB, KIND, LAUNCHER, WORKER, ColossalAIJobSpec, ReplicaOverride
from turnout.jobs.kinds.job_kind import CleanPods, NamedRole, ReplicaSpec, Restart
from turnout.jobs.model import BadJob
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount

HOME = "/root"  # what ~ means in a mount path: sshd of an image runs as root
# A host in the summary of the launcher that reports a failure.
_FAILURE = re.compile(r"^([^\s:]+): failure\s*$", re.MULTILINE)
_PREFIX = "colossalaijob.batch.tensorstack.dev/"
LABELS = ChildLabels(f"{_PREFIX}name", f"{_PREFIX}replica-type", f"{_PREFIX}replica-index", f"{_PREFIX}mode")
TRAIN_MODE, DEBUG_MODE = "train", "debug"  # values of the label `mode` of a pod
SSH_PORT = 22
CONFIG_PATH, LOG = "/etc/turnout", "/dev/termination-log"  # in the container of the launcher
SCRIPT = "launch.py"  # the text of runtime/launch_colossalai.py in the ConfigMap of the host list
ANSWER_S = 600  # seconds until every sshd has to answer
_T9K = "scheduler.tensorstack.dev/"  # prefix of labels
_DEBUG_COMMAND = ["sleep", "inf"]  # CA-34


def _read(raw: Object) -> ControlledJob:
    """Return the job of an object, with the fields that only this kind reads as `spec`. Raises BadJob."""
    meta, spec = raw["metadata"], colossalaijob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    pause, debug, queue = spec.run_mode.pause, spec.run_mode.debug, spec.scheduler.t9k_scheduler
    roles = (_read_launcher(spec), _read_workers(spec))
    status = ObjectPart(raw).part("status").value
    was_paused = any(each.get("type") == "Paused" for each in conditions.valid_conditions(status))
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=RunPolicy(
            suspended=pause.enabled,
            clean_pods=CleanPods.ALL if spec.run_policy.clean_up_workers else CleanPods.NONE,
        ),
        gang=GangSpec(sum(role.replicas for role in roles), "" if queue is None else queue.queue),
        spec={
            "ssh": _read_ssh(spec),
            "processes": spec.worker.proc_per_worker,
            "command": _read_command(spec),
            "torch": _read_torch_args(spec),
            "debug": _read_overrides(debug.replica_specs, "debug.replicaSpecs") if debug.enabled else None,
            "resume": _read_overrides(pause.resume_specs, "pause.resumeSpecs"),
            "resumed": not pause.enabled and was_paused,
            "queue": None if queue is None else queue.queue,
        },
    )


def _read_ssh(spec: ColossalAIJobSpec) -> Object:
    """Return {"path": mount path of the SSH keys, "sshd": path of the program}, with defaults.

    Raises BadJob for a relative path, and if the keys are to be mounted at the root.
    """
    path, sshd = spec.ssh.auth_mount_path or "~/.ssh", spec.ssh.sshd_path or "/usr/sbin/sshd"
    path = f"{HOME}{path[1:]}" if path.startswith("~/") else path
    for key, each in (("authMountPath", path), ("sshdPath", sshd)):
        if not each.startswith("/"):
            raise BadJob(f"spec.ssh.{key} is {each!r:.60}: an absolute path is needed")
    if not (folder := path.rstrip("/")):
        raise BadJob(f"spec.ssh.authMountPath is {path!r:.60}: a folder below / is needed")
    return {"path": folder, "sshd": sshd}


def _read_launcher(spec: ColossalAIJobSpec) -> Role:
    """Return the launcher's role: one pod that is never restarted.

    Raises BadJob if its image is missing or its template is invalid.
    """
    if not ObjectPart(spec.launcher, "spec.launcher").text("image"):
        raise BadJob("spec.launcher.image is missing")
    template = colossalaijob.launcher_template(spec)
    _check_pod(template)
    return Role(LAUNCHER, 1, template.value, Restart.NEVER, survives_cleanup=True)


def _read_workers(spec: ColossalAIJobSpec) -> Role:
    """Return the role of the workers.

    The restart policy ExitCode counts as Never. Raises BadJob for an invalid template.
    """
    template = colossalaijob.worker_template(spec)
    restart = read_enum(template.part("spec"), "restartPolicy", Restart, Restart.NEVER)
    restart = Restart.NEVER if restart is Restart.EXIT_CODE else restart
    replicas = ReplicaSpec(replicas=spec.worker.replicas, restart_policy=restart, template=spec.worker.template)
    role = job_reader.read_role(NamedRole(WORKER, WORKER, "spec.worker", replicas), WORKER, None, restart)
    _check_pod(template)
    return role


def _check_pod(template: ObjectPart) -> None:
    """Raise BadJob for a field of a wrong type, an invalid quantity, or a limit below the request of its container."""
    job_reader.check_template(template)
    for container in template.part("spec").parts("containers"):
        container.text("workingDir")
        limits = _amounts(container.part("resources").part("limits"))
        requests = _amounts(container.part("resources").part("requests"))
        for name, (number, path) in requests.items():
            if name in limits and limits[name][0] < number:
                raise BadJob(f"{limits[name][1]} is below {path}")


def _amounts(part: ObjectPart) -> dict[str, tuple[int, str]]:
    """Return resource -> (amount in base units, path of its field). Null counts as missing. Raises BadJob.

    part: requests or limits of a container. Base units: milli-CPUs for cpu, else as in `amount`.
    """
    amounts = {}
    for name, quantity in part.value.items():
        if quantity is None:
            continue
        try:
            amounts[name] = amount(name, quantity), part.at(name)
        except (BadQuantity, TypeError, AttributeError):
            raise BadJob(f"{part.at(name)} is {quantity!r:.40}: a quantity is needed") from None
    return amounts


def _read_command(spec: ColossalAIJobSpec) -> Sequence[str]:
    """Return the training command. Raises BadJob if it is empty, or does not begin with a .py file or -m."""
    command, where = spec.worker.command, "spec.worker.command"
    if not command:
        raise BadJob(f"{where} is missing: the script that is trained, and its arguments")
    if not command[0].endswith(".py") and command[0] != "-m":
        raise BadJob(f"{where} begins with {command[0]!r:.60}: colossalai runs a .py file, or -m MODULE")
    return command


def _read_torch_args(spec: ColossalAIJobSpec) -> str:
    """Return torchArgs as the one option of `colossalai run`: separated by commas, without dashes; "" for none.

    Raises BadJob for an argument that colossalai would split. Source: CA-09
    """
    for each in spec.worker.torch_args:
        if "," in each or each.count("=") > 1:
            raise BadJob(f"spec.worker.torchArgs has {each!r:.60}: colossalai splits it at a comma or a second =")
    return ",".join(each.removeprefix("--") for each in spec.worker.torch_args)


def _read_overrides(overrides: Sequence[ReplicaOverride], where: str) -> Mapping[str, ReplicaOverride]:
    """Return role (launcher, worker) -> what a mode changes in its pods. where: the path in spec.runMode, for messages.

    Of several overrides of a role the last counts. Raises BadJob for another role.
    """
    override_of_role = {}
    for number, each in enumerate(overrides):
        if (role := each.type.lower()) not in (LAUNCHER, WORKER):
            raise BadJob(f"spec.runMode.{where}[{number}].type is {each.type!r:.40}: launcher or worker")
        override_of_role[role] = each
    return override_of_role


def name(job: ControlledJob, role: Role, replica: Replica) -> str:
    """Return the name of a replica's pod. The launcher has no number in its name."""
    return f"{job.name}-{LAUNCHER}" if role.name == LAUNCHER else f"{job.name}-{WORKER}-{replica.number}"


def labels(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica's pod, with the mode of the job and, for the T9k scheduler, its queue."""
    mode = TRAIN_MODE if job.spec["debug"] is None else DEBUG_MODE
    pod_labels = {**selector(job, role), LABELS.index: str(replica.index), LABELS.mode: mode}
    if job.spec["queue"] is not None:
        pod_labels |= {f"{_T9K}group-name": job.name, f"{_T9K}queue": job.spec["queue"], f"{_T9K}role": role.name}
    return pod_labels


def selector(job: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {LABELS.job: job.name, LABELS.role: role.label}


def is_of_other_mode(job: ControlledJob, pod: PodState) -> bool:
    """Return True for a pod of the other mode: created for debugging while the job trains, or the other way round.

    False for a pod without the label `mode`.
    """
    return bool(pod.mode) and (pod.mode == DEBUG_MODE) != (job.spec["debug"] is not None)


def postponed_roles(job: ControlledJob, owned: OwnedObjects) -> Collection[str]:
    """Return the names of the roles whose missing pods are not created yet; () if all may be created.

    All roles wait until the ConfigMap of the host list exists, and with it the SSH keys. The launcher of a training job
    then waits until all workers run.
    """
    if ChildKey("ConfigMap", _config_name(job)) not in owned.others:
        return (LAUNCHER, WORKER)
    workers = next(role.replicas for role in job.roles if role.name == WORKER)
    running = sum(
        pod.role == WORKER and pod.phase is PodPhase.RUNNING and not pod.deleting and not is_of_other_mode(job, pod)
        for pod in owned.pods
    )
    return () if running >= workers or job.spec["debug"] is not None else (LAUNCHER,)


def _config_name(job: ControlledJob) -> str:
    """Return the name of the ConfigMap with the host list."""
    return f"{job.name}-config"


def _secret_name(job: ControlledJob) -> str:
    """Return the name of the Secret with the SSH keys. The uid keeps it apart from that of an earlier job."""
    return f"{job.name}-ssh-{job.uid[:8].lower()}"


def hosts(job: ControlledJob) -> list[str]:
    """Return the DNS names of the workers in the order of their ranks."""
    worker = next(role for role in job.roles if role.name == WORKER)
    return [f"{job.name}-{WORKER}-{index}.{job.name}" for index in range(worker.replicas)]


def other_children(job: ControlledJob, owned: OwnedObjects) -> Sequence[Object]:
    """Return the children that are not pods: the Service and the ConfigMap of the host list.

    Before them the Secret of the SSH keys, until that ConfigMap exists.
    """
    job_labels = {LABELS.job: job.name}
    service = {"clusterIP": "None", "selector": job_labels, "publishNotReadyAddresses": True}
    data = {"hostfile": "\n".join(hosts(job)) + "\n"}
    service_and_config: list[Object] = [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(job, job.name, job_labels), "spec": service},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta_of(job, _config_name(job), job_labels),
            "data": data,
        },
    ]
    if ChildKey("ConfigMap", _config_name(job)) in owned.others:
        return service_and_config
    keys = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta_of(job, _secret_name(job), job_labels),
        "type": "Opaque",
    }
    return [keys, *service_and_config]


def pod_spec(job: ControlledJob, role: Role, replica: Replica, _owned: OwnedObjects) -> dict[str, Any]:
    """Return the spec of one replica's pod, launcher or worker, for training or debugging as the job asks.

    A host name, the SSH keys and the host list are added; overrides of the mode apply.
    """
    spec = dict(role.template["spec"])
    override = _override_of_role(job, role)
    if override and override.skip_init_container:
        spec.pop("initContainers", None)
    if job.spec["queue"] is not None:
        spec["schedulerName"] = "t9k-scheduler"
    spec |= {"hostname": name(job, role, replica), "subdomain": job.name}
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(job, role)]
    spec["containers"] = [
        _container_in_mode(job, role, each, override) if each.get("name") == role.name else each
        for each in spec["containers"]
    ]
    return spec


def _override_of_role(job: ControlledJob, role: Role) -> ReplicaOverride | None:
    """Return what the mode of the job changes in the pods of a role; None if nothing.

    While a job is debugged, its debug overrides count; after a pause, its resume overrides.
    """
    overrides = job.spec["debug"]
    if overrides is None:
        overrides = job.spec["resume"] if job.spec["resumed"] else {}
    override: ReplicaOverride | None = overrides.get(role.name)
    return override


def _container_in_mode(job: ControlledJob, role: Role, container: Object, override: ReplicaOverride | None) -> Object:
    """Return the launcher's or worker's container with SSH, variables and mounts, and the command of the job's mode.

    override: what the mode changes; None for nothing.
    """
    changed = {**container, **_mode_command(job, role, override)}
    if "args" not in changed or changed["args"] is None:
        changed.pop("args", None)
    mounts = [{"name": "turnout-ssh", "mountPath": job.spec["ssh"]["path"]}]
    if role.name == LAUNCHER:
        mounts.append({"name": "turnout-config", "mountPath": CONFIG_PATH})
        changed["env"] = with_missing_variables(container.get("env") or (), _worker_variables(job))
    else:
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        changed["env"] = with_missing_variables(container.get("env") or (), [address])
    return {**changed, "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts]}


def _mode_command(job: ControlledJob, role: Role, override: ReplicaOverride | None) -> dict[str, Any]:
    """Return the fields `command` and `args` of a container for training or debugging.

    override: what the mode changes in the role's pods; None for nothing. `args` is None if the container gets none.
    """
    if job.spec["debug"] is not None:
        return {"command": override.command if override and override.command else _DEBUG_COMMAND, "args": None}
    default = _launcher_command(job) if role.name == LAUNCHER else _sshd_command(job)
    if override and (override.command or override.args):
        return {"command": override.command or default, "args": override.args or None}
    return {"command": default, "args": None}


def _sshd_command(job: ControlledJob) -> list[str]:
    """Return the command of a worker: sshd with the job's own keys, whatever the image contains.

    Source: CA-03, CA-11
    """
    path = job.spec["ssh"]["path"]
    options = {
        "HostKey": f"{path}/ssh_host_ecdsa_key",
        "AuthorizedKeysFile": f"{path}/authorized_keys",
        "StrictModes": "no",  # a volume's folder is not its user's own
        "ListenAddress": "$(POD_IP)",
        "PidFile": "none",
    }
    return [
        job.spec["ssh"]["sshd"],
        "-De",
        "-p",
        str(SSH_PORT),
        *(part for each in options.items() for part in ("-o", "=".join(each))),
    ]


def _launcher_command(job: ControlledJob) -> list[str]:
    """Return the command of the launcher: once every sshd answers, it runs `colossalai run`.

    Source: CA-08, CA-09, CA-22
    """
    hostfile = f"{CONFIG_PATH}/hostfile"
    wait = ["python3", f"{CONFIG_PATH}/{SCRIPT}", hostfile, str(SSH_PORT), str(ANSWER_S), LOG]
    run = ["colossalai", "run", "--hostfile", hostfile, "--nproc_per_node", str(job.spec["processes"])]
    run += ["--master_addr", hosts(job)[0], "--ssh-port", str(SSH_PORT)]
    if job.spec["torch"]:
        run += ["--extra_launch_args", job.spec["torch"]]
    return [*wait, *run, *job.spec["command"]]


def _worker_variables(job: ControlledJob) -> list[Object]:
    """Return the worker's variables that the launcher gets, too, since sshd passes no variables on to the hosts.

    Variables that name a field of the pod are left out, since they are valid for one pod only. Source: CA-19, CA-20
    """
    worker = next(role for role in job.roles if role.name == WORKER)
    (container,) = (each for each in worker.template["spec"]["containers"] if each.get("name") == WORKER)
    return [each for each in container.get("env") or () if not (each.get("valueFrom") or {}).get("fieldRef")]


def _volumes(job: ControlledJob, role: Role) -> list[Object]:
    """Return the volumes that are added to a pod: the SSH keys, and for the launcher the host list."""
    volumes: list[Object] = [{"name": "turnout-ssh", "secret": {"secretName": _secret_name(job), "defaultMode": 0o600}}]
    if role.name == LAUNCHER:
        volumes.append({"name": "turnout-config", "configMap": {"name": _config_name(job)}})
    return volumes


def conditions_of_pods(
    job: ControlledJob, counts: Mapping[str, Counts], owned: OwnedObjects
) -> list[PodDerivedCondition]:
    """Return the condition that follows from the pods, in a list; [] if none does. counts: by the name of the role.

    A training job may end, as `_end_condition` states; a job under debugging does not end. RUNNING if all pods are
    active. Source: CA-21, CA-23, CA-24, SD-17
    """
    if job.spec["debug"] is None and (end := _end_condition(job, owned)) is not None:
        return [end]
    active = sum(count.active for count in counts.values())
    return (
        [PodDerivedCondition(Reason.RUNNING, f"{KIND} {job.name} is running.")] if active == job.gang.min_member else []
    )


def _end_condition(job: ControlledJob, owned: OwnedObjects) -> PodDerivedCondition | None:
    """Return the condition that ends a training job; None if the job continues or has no launcher pod.

    A succeeded launcher ends the job: Failed if its summary names a host's failure, else Succeeded. Before that, a
    restarted worker fails the job. A failed launcher fails the job elsewhere (`role_pods`).
    """
    launcher = next((pod for pod in owned.pods if pod.role == LAUNCHER), None)
    if launcher is None:
        return None
    if launcher.phase is PodPhase.SUCCEEDED:
        if failed := _FAILURE.findall(launcher.training_container.message):
            return PodDerivedCondition(Reason.FAILED, f"The launcher's summary names {', '.join(failed)}: failure.")
        return PodDerivedCondition(Reason.SUCCEEDED, f"{KIND} {job.name} is successfully completed.")
    restarted = next((pod.name for pod in owned.pods if pod.role == WORKER and pod.restarts), "")
    if restarted:
        return PodDerivedCondition(
            Reason.FAILED, f"Worker {restarted} started again and is out of the launcher's host list."
        )
    return None


def creation_warnings(job: ControlledJob) -> Sequence[str]:
    """Return texts about a new job that its owner should read; empty without any. Source: CA-12, CA-18"""
    return list(_creation_warnings(job))


def _creation_warnings(job: ControlledJob) -> Iterator[str]:
    """Yield warnings about the worker's template: a command without effect, and memory volumes above the memory
    limit.
    """
    spec = next(role for role in job.roles if role.name == WORKER).template["spec"]
    worker = next(each for each in spec["containers"] if each.get("name") == WORKER)
    if worker.get("command") or worker.get("args"):
        yield "spec.worker.template: the command of container worker has no effect: it runs sshd"
    limit = ((worker.get("resources") or {}).get("limits") or {}).get("memory")
    for name, size in _memory_volumes(spec):
        if limit is not None and _is_more_memory(size, limit):
            yield f"spec.worker.template: volume {name} of {size} counts against the memory limit {limit}"


def _memory_volumes(spec: Object) -> Iterator[tuple[Any, Any]]:
    """Yield (name, size limit) of each emptyDir that is in memory and has a size limit. spec: of the pod."""
    for volume in spec.get("volumes") or ():
        directory = volume.get("emptyDir")
        if isinstance(directory, Mapping) and directory.get("medium") == "Memory" and "sizeLimit" in directory:
            yield volume.get("name"), directory["sizeLimit"]


def _is_more_memory(size: Any, limit: Any) -> bool:
    """Return True if a quantity exceeds another one; False if one of them is invalid."""
    try:
        return amount("memory", size) > amount("memory", limit)
    except (BadQuantity, TypeError, AttributeError):
        return False


def _no_recreation(_job: ControlledJob, _role: Role, _pod: PodState) -> bool:
    """Return False: no failed pod is recreated, because ranks are fixed and no worker can join again."""
    return False


COLOSSALAIJOB = ControlledKind(
    KIND,
    (COLOSSALAI_JOB.api_version,),
    COLOSSALAI_JOB.plural,
    LAUNCHER,
    job_reader.refusing(_read),
    ChildRules(
        labels, selector, pod_spec, other_children, label_keys=LABELS, owns=("Pod", "Service", "ConfigMap"), name=name
    ),
    StatusRules(conditions_of_pods, translation=TRANSLATION, reports_containers=True),
    RestartRules(should_recreate=_no_recreation),
    postponed_roles=postponed_roles,
    creation_warnings=creation_warnings,
    is_of_other_mode=is_of_other_mode,
)
