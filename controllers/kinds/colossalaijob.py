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
from turnout.controllers.model import (
    ChildKey,
    ChildLabels,
    ControlledJob,
    ControlledKind,
    Counts,
    GangSpec,
    JobVerdict,
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
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import colossalaijob
from turnout.jobs.kinds.colossalaijob import COLOSSALAI_JOB, KIND, LAUNCHER, WORKER, ColossalAIJobSpec, ReplicaOverride
from turnout.jobs.kinds.job_kind import CleanPods, NamedRole, ReplicaSpec, Restart
from turnout.jobs.model import BadJob
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount
from turnout.kube.times import rfc3339

HOME = "/root"  # what ~ means in a mount path: sshd of an image runs as root
_FAILURE = re.compile(r"^([^\s:]+): failure\s*$", re.MULTILINE)
_PREFIX = "colossalaijob.batch.tensorstack.dev/"
LABELS = ChildLabels(f"{_PREFIX}name", f"{_PREFIX}replica-type", f"{_PREFIX}replica-index", f"{_PREFIX}mode")
TRAINS, DEBUGGED = "train", "debug"
SSH_PORT = 22
CONFIG, LOG = "/etc/turnout", "/dev/termination-log"
SCRIPT = "launch.py"  # put beside the host list when that is written down: runtime/launch_colossalai.py
ANSWER_S = 600  # seconds until every sshd has to answer
_T9K = "scheduler.tensorstack.dev/"
_DEBUG = ["sleep", "inf"]  # CA-34


def _read(raw: Object) -> ControlledJob:
    """Return the job as the controllers see it. Raises BadJob."""
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
    """Return the paths of SSH keys and sshd, with defaults. Raises BadJob for a relative path."""
    path, sshd = spec.ssh.auth_mount_path or "~/.ssh", spec.ssh.sshd_path or "/usr/sbin/sshd"
    path = f"{HOME}{path[1:]}" if path.startswith("~/") else path
    for key, each in (("authMountPath", path), ("sshdPath", sshd)):
        if not each.startswith("/"):
            raise BadJob(f"spec.ssh.{key} is {each!r:.60}: an absolute path is needed")
    return {"path": path.rstrip("/"), "sshd": sshd}


def _read_launcher(spec: ColossalAIJobSpec) -> Role:
    """Return the launcher's role: one pod that is never restarted. Raises BadJob if its image is missing."""
    if not ObjectPart(spec.launcher, "spec.launcher").text("image"):
        raise BadJob("spec.launcher.image is missing")
    template = colossalaijob.launcher_template(spec)
    _check_pod(template)
    return Role(LAUNCHER, 1, template.value, Restart.NEVER, survives_cleanup=True)


def _read_workers(spec: ColossalAIJobSpec) -> Role:
    """Return the role of the workers. ExitCode counts as Never. Raises BadJob."""
    template = colossalaijob.worker_template(spec)
    restart = template.part("spec").word("restartPolicy", Restart, Restart.NEVER)
    restart = Restart.NEVER if restart is Restart.EXIT_CODE else restart
    replicas = ReplicaSpec(replicas=spec.worker.replicas, restart_policy=restart, template=spec.worker.template)
    role = job_reader.role(NamedRole(WORKER, WORKER, "spec.worker", replicas), WORKER, None, restart)
    _check_pod(template)
    return role


def _check_pod(template: ObjectPart) -> None:
    """Raise BadJob for a container whose limit of a resource is below its request."""
    job_reader.check_template(template)
    for container in template.part("spec").parts("containers"):
        container.text("workingDir")
        most = _amounts(container.part("resources").part("limits"))
        least = _amounts(container.part("resources").part("requests"))
        for name, (number, where) in least.items():
            if name in most and most[name][0] < number:
                raise BadJob(f"{most[name][1]} is below {where}")


def _amounts(part: ObjectPart) -> dict[str, tuple[int, str]]:
    """Return the amounts of resources in base units, each with the path of its field. Raises BadJob."""
    found = {}
    for name, quantity in part.value.items():
        if quantity is None:
            continue
        try:
            found[name] = amount(name, quantity), part.at(name)
        except (BadQuantity, TypeError, AttributeError):
            raise BadJob(f"{part.at(name)} is {quantity!r:.40}: a quantity is needed") from None
    return found


def _read_command(spec: ColossalAIJobSpec) -> Sequence[str]:
    """Return the training command. Raises BadJob unless it begins with a .py file or -m."""
    command, where = spec.worker.command, "spec.worker.command"
    if not command:
        raise BadJob(f"{where} is missing: the script that is trained, and its arguments")
    if not command[0].endswith(".py") and command[0] != "-m":
        raise BadJob(f"{where} begins with {command[0]!r:.60}: colossalai runs a .py file, or -m MODULE")
    return command


def _read_torch_args(spec: ColossalAIJobSpec) -> str:
    """Return torchArgs as `colossalai run` takes them in one option: commas apart, without dashes. Source: CA-09"""
    for each in spec.worker.torch_args:
        if "," in each or each.count("=") > 1:
            raise BadJob(f"spec.worker.torchArgs has {each!r:.60}: colossalai splits it at a comma or a second =")
    return ",".join(each.removeprefix("--") for each in spec.worker.torch_args)


def _read_overrides(overrides: Sequence[ReplicaOverride], where: str) -> Mapping[str, ReplicaOverride]:
    """Return what a mode changes, by role. where: the path in spec.runMode."""
    found = {}
    for number, each in enumerate(overrides):
        if (role := each.type.lower()) not in (LAUNCHER, WORKER):
            raise BadJob(f"spec.runMode.{where}[{number}].type is {each.type!r:.40}: launcher or worker")
        found[role] = each
    return found


def name(view: ControlledJob, role: Role, replica: Replica) -> str:
    """Return a pod's name: the launcher is one."""
    return f"{view.name}-{LAUNCHER}" if role.name == LAUNCHER else f"{view.name}-{WORKER}-{replica.number}"


def labels(view: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica."""
    mode = TRAINS if view.spec["debug"] is None else DEBUGGED
    found = {**selector(view, role), LABELS.index: str(replica.index), LABELS.mode: mode}
    if view.spec["queue"] is not None:
        found |= {f"{_T9K}group-name": view.name, f"{_T9K}queue": view.spec["queue"], f"{_T9K}role": role.name}
    return found


def selector(view: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {LABELS.job: view.name, LABELS.role: role.label}


def outdated(view: ControlledJob, pod: PodState) -> bool:
    """Return True for a pod that was created for debugging while the job trains, or the other way round."""
    return bool(pod.mode) and (pod.mode == DEBUGGED) != (view.spec["debug"] is not None)


def postponed_roles(view: ControlledJob, known: OwnedObjects) -> Collection[str]:
    """Return the roles that wait: all for the keys and the host list, the launcher for all workers to run."""
    if ChildKey("ConfigMap", _config(view)) not in known.others:
        return (LAUNCHER, WORKER)
    workers = next(role.replicas for role in view.roles if role.name == WORKER)
    run = sum(
        pod.role == WORKER and pod.phase is PodPhase.RUNNING and not pod.deleting and not outdated(view, pod)
        for pod in known.pods
    )
    return () if run >= workers or view.spec["debug"] is not None else (LAUNCHER,)


def _config(view: ControlledJob) -> str:
    return f"{view.name}-config"


def _secret(view: ControlledJob) -> str:
    return f"{view.name}-ssh-{view.uid[:8].lower()}"


def hosts(view: ControlledJob) -> list[str]:
    """Return the workers' names in the order of their ranks."""
    worker = next(role for role in view.roles if role.name == WORKER)
    return [f"{view.name}-{WORKER}-{index}.{view.name}" for index in range(worker.replicas)]


def extras(view: ControlledJob, known: OwnedObjects) -> Sequence[Object]:
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


def pod_spec(view: ControlledJob, role: Role, replica: Replica, _known: OwnedObjects) -> dict[str, Any]:
    """Return the spec of the launcher or of a worker, in the job's mode."""
    spec = dict(role.template["spec"])
    override = _override(view, role)
    if override and override.skip_init_container:
        spec.pop("initContainers", None)
    if view.spec["queue"] is not None:
        spec["schedulerName"] = "t9k-scheduler"
    spec |= {"hostname": name(view, role, replica), "subdomain": view.name}
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(view, role)]
    spec["containers"] = [
        _container_in_mode(view, role, each, override) if each.get("name") == role.name else each
        for each in spec["containers"]
    ]
    return spec


def _override(view: ControlledJob, role: Role) -> ReplicaOverride | None:
    """Return what the job's mode changes in the pods of a role, None for nothing."""
    overrides = view.spec["debug"]
    if overrides is None:
        overrides = view.spec["resume"] if view.spec["resumed"] else {}
    override: ReplicaOverride | None = overrides.get(role.name)
    return override


def _container_in_mode(view: ControlledJob, role: Role, container: Object, override: ReplicaOverride | None) -> Object:
    """Return a container with SSH, variables and mounts, and with the command of the job's mode."""
    changed = {**container, **_mode_command(view, role, override)}
    if "args" not in changed or changed["args"] is None:
        changed.pop("args", None)
    mounts = [{"name": "turnout-ssh", "mountPath": view.spec["ssh"]["path"]}]
    if role.name == LAUNCHER:
        mounts.append({"name": "turnout-config", "mountPath": CONFIG})
        changed["env"] = with_missing_variables(container.get("env") or (), _worker_variables(view))
    else:
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        changed["env"] = with_missing_variables(container.get("env") or (), [address])
    return {**changed, "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts]}


def _mode_command(view: ControlledJob, role: Role, override: ReplicaOverride | None) -> dict[str, Any]:
    """Return the command of a container: training, or the command of the job's mode."""
    if view.spec["debug"] is not None:
        return {"command": override.command if override and override.command else _DEBUG, "args": None}
    own = _launcher_command(view) if role.name == LAUNCHER else _sshd_command(view)
    if override and (override.command or override.args):
        return {"command": override.command or own, "args": override.args or None}
    return {"command": own, "args": None}


def _sshd_command(view: ControlledJob) -> list[str]:
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


def _launcher_command(view: ControlledJob) -> list[str]:
    """Return the launcher's command: once every sshd answers, the ColossalAI runner. Source: CA-08, CA-09, CA-22"""
    hostfile = f"{CONFIG}/hostfile"
    wait = ["python3", f"{CONFIG}/{SCRIPT}", hostfile, str(SSH_PORT), str(ANSWER_S), LOG]
    run = ["colossalai", "run", "--hostfile", hostfile, "--nproc_per_node", str(view.spec["processes"])]
    run += ["--master_addr", hosts(view)[0], "--ssh-port", str(SSH_PORT)]
    if view.spec["torch"]:
        run += ["--extra_launch_args", view.spec["torch"]]
    return [*wait, *run, *view.spec["command"]]


def _worker_variables(view: ControlledJob) -> list[Object]:
    """Return the worker's variables for the launcher, which takes its own to every host: sshd passes none on.

    Those that name a field of the pod are the worker's alone. Source: CA-19, CA-20
    """
    worker = next(role for role in view.roles if role.name == WORKER)
    (container,) = (each for each in worker.template["spec"]["containers"] if each.get("name") == WORKER)
    return [each for each in container.get("env") or () if not (each.get("valueFrom") or {}).get("fieldRef")]


def _volumes(view: ControlledJob, role: Role) -> list[Object]:
    """Return the volumes of a pod: SSH keys, and for the launcher the configuration."""
    found: list[Object] = [{"name": "turnout-ssh", "secret": {"secretName": _secret(view), "defaultMode": 0o600}}]
    if role.name == LAUNCHER:
        found.append({"name": "turnout-config", "configMap": {"name": _config(view)}})
    return found


def judge(view: ControlledJob, counts: Mapping[str, Counts], known: OwnedObjects) -> list[JobVerdict]:
    """Return the conditions that follow from the pods. The launcher's end is the job's, unless it names a host.

    A restarted worker is no longer in the host list. Source: CA-21, CA-23, CA-24, SD-17
    """
    if view.spec["debug"] is None and (end := _end(view, known)) is not None:
        return [end]
    active = sum(count.active for count in counts.values())
    return [JobVerdict(Reason.RUNNING, f"{KIND} {view.name} is running.")] if active == view.gang.min_member else []


def _end(view: ControlledJob, known: OwnedObjects) -> JobVerdict | None:
    """Return the end of a job that trains, None if it continues."""
    launcher = next((pod for pod in known.pods if pod.role == LAUNCHER), None)
    if launcher is None:
        return None
    if launcher.phase is PodPhase.SUCCEEDED:
        if failed := _FAILURE.findall(launcher.last_words):
            return JobVerdict(Reason.FAILED, f"The launcher's summary names {', '.join(failed)}: failure.")
        return JobVerdict(Reason.SUCCEEDED, f"{KIND} {view.name} is successfully completed.")
    restarted = next((pod.name for pod in known.pods if pod.role == WORKER and pod.restarts), "")
    if restarted:
        return JobVerdict(Reason.FAILED, f"Worker {restarted} started again and is out of the launcher's host list.")
    return None


def advice(view: ControlledJob) -> Sequence[str]:
    """Return what a new job's owner should know. Source: CA-12, CA-18"""
    return list(_advice(view))


def _advice(view: ControlledJob) -> Iterator[str]:
    """Yield advice on the worker's template that the owner should read."""
    spec = next(role for role in view.roles if role.name == WORKER).template["spec"]
    worker = next(each for each in spec["containers"] if each.get("name") == WORKER)
    if worker.get("command") or worker.get("args"):
        yield "spec.worker.template: the command of container worker has no effect: it runs sshd"
    limit = ((worker.get("resources") or {}).get("limits") or {}).get("memory")
    for name, size in _memory_volumes(spec):
        if limit is not None and _is_more_memory(size, limit):
            yield f"spec.worker.template: volume {name} of {size} counts against the memory limit {limit}"


def _memory_volumes(spec: Object) -> Iterator[tuple[Any, Any]]:
    """Yield the name and the size of each volume that is kept in memory and has a size."""
    for volume in spec.get("volumes") or ():
        directory = volume.get("emptyDir")
        if isinstance(directory, Mapping) and directory.get("medium") == "Memory" and "sizeLimit" in directory:
            yield volume.get("name"), directory["sizeLimit"]


def _is_more_memory(size: Any, limit: Any) -> bool:
    """Return True if a size exceeds a limit; False if one of them is invalid."""
    try:
        return amount("memory", size) > amount("memory", limit)
    except (BadQuantity, TypeError, AttributeError):
        return False


def _never_recreate(_view: ControlledJob, _role: Role, _pod: PodState) -> bool:
    return False  # ranks are fixed, so no worker rejoins


# The status in T9k's words: a phase, six conditions, tasks and an aggregate. Source: CA-43 to CA-59, SD-10, SD-11
NORMAL, NO_REASON = "All pods are running normally.", "-"
_TYPES = (LAUNCHER, WORKER)
_WORDS = {
    "Initialized": Reason.CREATED,
    "Running": Reason.RUNNING,
    "Completed": Reason.SUCCEEDED,
    "Failed": Reason.FAILED,
    "Paused": Reason.SUSPENDED,
}
_ORDER = ("Initialized", "Running", "ReplicaFailure", "Completed", "Failed", "Paused")
_FAILED = "The job exited with an error code."


def _to_core_status(status: Object) -> Object:
    """Return the conditions that the core remembers, and the times."""
    found = []
    for each in conditions.valid_conditions(status):
        type_ = each.get("type")
        if (word := _WORDS.get(type_) if isinstance(type_, str) else None) is None:
            continue
        if word in (Reason.SUCCEEDED, Reason.FAILED) and each.get("status") != "True":
            continue
        time = each.get("lastTransitionTime")
        time = time if isinstance(time, str) else rfc3339(0.0)
        status_word = each.get("status") if word is not Reason.CREATED else "True"
        found.append(
            {
                "type": word.value,
                "status": status_word,
                "reason": _core_reason(word, status_word),
                "message": each.get("message"),
                "lastTransitionTime": time,
            }
        )
    return {**{name: status[name] for name in ("startTime", "completionTime") if name in status}, "conditions": found}


def _core_reason(word: Reason, status: Any) -> str:
    if word is Reason.SUSPENDED and status != "True":
        return f"ColossalAIJob{Reason.RESUMED.value}"
    return f"ColossalAIJob{word.value}"


def _to_t9k_status(status: Object, view: ControlledJob | None, known: OwnedObjects, moment: StatusContext) -> Object:
    """Return the status in the words of the T9k operator.

    status: in our words. moment: the status before, and the time.
    """
    ours: Sequence[Object] = status["conditions"]
    before = {str(each.get("type")): each for each in conditions.valid_conditions(moment.before)}
    converted = [
        _condition(type_, *values, before.get(type_), moment.now_s)
        for type_, values in _conditions(ours, view, known, before)
    ]
    converted.sort(key=lambda each: _ORDER.index(each["type"]))
    times = {name: status[name] for name in ("startTime", "completionTime") if name in status}
    return {
        **times,
        "phase": _phase(ours, view, known),
        "conditions": converted,
        "tasks": [_task(type_, known.pods) for type_ in _TYPES],
        "aggregate": _aggregate(view, known.pods),
    }


def _conditions(
    ours: Sequence[Object], view: ControlledJob | None, known: OwnedObjects, before: Mapping[Any, Object]
) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give each condition's type, and whether it is true, its reason and its message."""
    complete = view is not None and len(known.pods) >= view.gang.min_member
    if complete or (before.get("Initialized") or {}).get("status") == "True":
        yield "Initialized", (True, NO_REASON, "The job has been initialized successfully.")
    else:
        yield "Initialized", (False, NO_REASON, "The job's pods are being made.")
    yield from _running_conditions(ours)
    broken = [pod.name for pod in known.pods if pod.phase is PodPhase.FAILED]
    words = f"{', '.join(broken)} failed." if broken else NORMAL
    yield "ReplicaFailure", (bool(broken), "Failed" if broken else NO_REASON, words)
    yield from _end_conditions(ours)


def _running_conditions(ours: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give the conditions Running and Paused, if the job ever ran or was paused, as `_conditions` does."""
    paused = conditions.is_true(ours, Reason.SUSPENDED)
    if ran := [each for each in ours if each.get("type") == Reason.RUNNING.value]:
        runs = not paused and (conditions.ended(ours) or ran[0].get("status") == "True")
        yield "Running", (runs, NO_REASON, NORMAL if runs else "The job is paused.")
    if paused or any(each.get("type") == Reason.SUSPENDED.value for each in ours):
        yield "Paused", (paused, NO_REASON, "All replicas are deleted." if paused else "The job has been resumed.")


def _end_conditions(ours: Sequence[Object]) -> Iterator[tuple[str, tuple[bool, str, str]]]:
    """Give the conditions Completed and Failed, as `_conditions` does."""
    if conditions.is_true(ours, Reason.FAILED):
        text = next((str(each.get("message")) for each in ours if each.get("type") == Reason.FAILED.value), _FAILED)
        yield "Completed", (False, "Failed", text)
        yield "Failed", (True, "Failed", text)
        return
    done = conditions.is_true(ours, Reason.SUCCEEDED)
    yield "Completed", (done, NO_REASON, "The job has succeeded." if done else "The job has not ended.")
    yield "Failed", (False, NO_REASON, "The job has not failed.")


def _condition(type_: str, on: bool, reason: str, text: str, before: Object | None, now_s: float) -> dict[str, Any]:
    """Return a condition. Its transition time stays if its status stays. before: the old condition, None for none."""
    status = "True" if on else "False"
    time_before = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    time = time_before if isinstance(time_before, str) else rfc3339(now_s)
    return {"type": type_, "status": status, "reason": reason, "message": text, "lastTransitionTime": time}


_DECIDED_PHASES = {Reason.FAILED: "Failed", Reason.SUCCEEDED: "Succeeded", Reason.SUSPENDED: "Paused"}


def _phase(ours: Sequence[Object], view: ControlledJob | None, known: OwnedObjects) -> str:
    """Return the phase of a job. ours: its conditions in our words."""
    for condition, phase in _DECIDED_PHASES.items():
        if conditions.is_true(ours, condition):
            return phase
    if known.unread or any(pod.phase is PodPhase.UNKNOWN for pod in known.pods):
        return "Unknown"
    if view is not None and _running_pods(known) >= view.gang.min_member:
        return "Running"
    if any(each.get("type") == Reason.SUSPENDED.value for each in ours):
        return "Resuming"
    return "Running" if conditions.is_true(ours, Reason.RUNNING) else "Pending"


def _running_pods(known: OwnedObjects) -> int:
    return sum(pod.phase is PodPhase.RUNNING and not pod.deleting for pod in known.pods)


def _task(type_: str, pods: Sequence[PodState]) -> Object:
    """Return the status of the replicas of one type, under both names that the manuals have for the list."""
    mine = sorted((pod for pod in pods if pod.role == type_), key=lambda pod: pod.index)
    each = [_replica(pod) for pod in mine]
    return {"type": type_, "restartCount": sum(pod.restarts for pod in mine), "status": each, "replicas": each}


def _replica(pod: PodState) -> Object:
    """Return the status of one pod, with its scheduler's message while it has no node. Source: CA-14"""
    fields = {"phase": pod.phase.value, "name": pod.name, "uid": pod.uid, "containers": list(pod.containers)}
    return {**fields, "message": pod.scheduler_message} if pod.scheduler_message else fields


def _aggregate(view: ControlledJob | None, pods: Sequence[PodState]) -> Object:
    """Return how many pods are in each phase. Pods that are being deleted count as deleted."""
    counts = dict.fromkeys(("creating", "pending", "running", "succeeded", "failed", "deleted", "unknown"), 0)
    for pod in pods:
        if pod.deleting:
            counts["deleted"] += 1
        elif pod.phase is PodPhase.PENDING:
            counts["creating" if pod.node else "pending"] += 1
        else:
            counts[pod.phase.value.lower()] += 1
    return counts


_VOCABULARY = StatusVocabulary(
    ("phase", "conditions", "tasks", "aggregate", "startTime", "completionTime"), _to_core_status, _to_t9k_status
)

COLOSSALAIJOB = ControlledKind(
    KIND,
    (COLOSSALAI_JOB.api_version,),
    COLOSSALAI_JOB.plural,
    LAUNCHER,
    job_reader.refusing(_read),
    labels,
    selector,
    pod_spec,
    extras,
    judge,
    child_labels=LABELS,
    owns=("Pod", "Service", "ConfigMap"),
    name=name,
    postponed_roles=postponed_roles,
    recreate=_never_recreate,
    vocabulary=_VOCABULARY,
    advice=advice,
    outdated=outdated,
    reports_containers=True,
)
