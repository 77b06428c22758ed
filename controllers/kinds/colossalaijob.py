"""ColossalAIJobs: what their objects say. Source: docs/facts/job-kinds.md 1.3; contract CA-01 to CA-42.

Workers run sshd and wait; the launcher runs `colossalai run`, which reaches them by SSH. The host list is fixed when
training starts, so a worker that starts again is out of it and the job fails (CA-21).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.kinds import colossalaijob_pods as pods
from turnout.controllers.kinds import colossalaijob_status as status
from turnout.controllers.kinds import fields
from turnout.controllers.kinds.colossalaijob_pods import KIND, LABELS, LAUNCHER, WORKER
from turnout.controllers.model import (
    CleanPods,
    Counts,
    GangSpec,
    JobPhase,
    JobView,
    Kind,
    KnownChildren,
    Object,
    PodState,
    PodVerdict,
    Reason,
    Restart,
    Role,
    RunPolicy,
)
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount

API = "batch.tensorstack.dev/v1beta1"
HOME = "/root"  # what ~ means in a mount path: sshd of an image runs as root
MOST_PRIORITY = 100
_FAILURE = re.compile(r"^([^\s:]+): failure\s*$", re.MULTILINE)
_TYPES = (LAUNCHER, WORKER)


def _read(raw: Object) -> JobView:
    meta, spec = raw["metadata"], Part(raw).part("spec")
    fields.check_name(meta)
    worker, mode = spec.part("worker"), spec.part("runMode")
    turn = spec.part("scheduler").part("t9kScheduler")
    pause = mode.part("pause").flag("enabled")
    roles = (_launcher(spec.part("launcher")), _worker(worker))
    priority = turn.count("priority", 0)
    if priority > MOST_PRIORITY:
        raise BadJob(f"{turn.at('priority')} is {priority}: at most {MOST_PRIORITY}")
    status_part = Part(raw).part("status")
    was_paused = any(each.get("type") == "Paused" for each in conditions.valid_conditions(status_part.value))
    return JobView(
        api_version=raw["apiVersion"],
        kind=KIND,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        roles=roles,
        policy=RunPolicy(
            suspended=pause,
            clean_pods=CleanPods.ALL if spec.part("runPolicy").flag("cleanUpWorkers") else CleanPods.NONE,
        ),
        gang=GangSpec(sum(role.replicas for role in roles), turn.text("queue")),
        spec={
            "ssh": _ssh(spec.part("ssh")),
            "processes": worker.count("procPerWorker", 1, 1),
            "command": _command(worker),
            "torch": _torch(worker),
            "debug": _overrides(mode.part("debug"), "replicaSpecs") if mode.part("debug").flag("enabled") else None,
            "resume": _overrides(mode.part("pause"), "resumeSpecs"),
            "resumed": not pause and was_paused,
            "queue": turn.text("queue") if spec.part("scheduler").has("t9kScheduler") else None,
        },
    )


def _ssh(part: Part) -> Object:
    path, sshd = part.text("authMountPath") or "~/.ssh", part.text("sshdPath") or "/usr/sbin/sshd"
    path = f"{HOME}{path[1:]}" if path.startswith("~/") else path
    for key, each in (("authMountPath", path), ("sshdPath", sshd)):
        if not each.startswith("/"):
            raise BadJob(f"{part.at(key)} is {each!r:.60}: an absolute path is needed")
    return {"path": path.rstrip("/"), "sshd": sshd}


def _launcher(part: Part) -> Role:
    if not part.text("image"):
        raise BadJob(f"{part.at('image')} is missing")
    template = {"spec": {"containers": [{**part.value, "name": LAUNCHER}]}}
    _check_pod(Part(template, part.where))
    return Role(LAUNCHER, 1, template, Restart.NEVER, survives_cleanup=True)


def _worker(part: Part) -> Role:
    """Return the role of the workers. ExitCode counts as Never. Raises BadJob."""
    if not part.has("template"):
        raise BadJob(f"{part.at('template')} is missing")
    role = fields.role(WORKER, part, WORKER, None, Restart.NEVER)
    spec = part.part("template").part("spec")
    _check_pod(part.part("template"))
    if role.replicas < 1:
        raise BadJob(f"{part.at('replicas')} is 0: a job needs workers")
    restart = fields.word(spec, "restartPolicy", Restart, Restart.NEVER)
    return Role(WORKER, role.replicas, role.template, Restart.NEVER if restart is Restart.EXIT_CODE else restart)


def _check_pod(template: Part) -> None:
    fields.check_template(template)
    for container in template.part("spec").parts("containers"):
        container.text("workingDir")
        most = _amounts(container.part("resources").part("limits"))
        least = _amounts(container.part("resources").part("requests"))
        for name, (number, where) in least.items():
            if name in most and most[name][0] < number:
                raise BadJob(f"{most[name][1]} is below {where}")


def _amounts(part: Part) -> dict[str, tuple[int, str]]:
    found = {}
    for name, quantity in part.value.items():
        if quantity is None:
            continue
        try:
            found[name] = amount(name, quantity), part.at(name)
        except (BadQuantity, TypeError, AttributeError):
            raise BadJob(f"{part.at(name)} is {quantity!r:.40}: a quantity is needed") from None
    return found


def _command(worker: Part) -> Sequence[str]:
    command = worker.texts("command")
    if not command:
        raise BadJob(f"{worker.at('command')} is missing: the script that is trained, and its arguments")
    if not command[0].endswith(".py") and command[0] != "-m":
        raise BadJob(f"{worker.at('command')} begins with {command[0]!r:.60}: colossalai runs a .py file, or -m MODULE")
    return command


def _torch(worker: Part) -> str:
    """Return torchArgs as `colossalai run` takes them in one option: commas apart, without dashes. Source: CA-09"""
    found = []
    for each in worker.texts("torchArgs"):
        if "," in each or each.count("=") > 1:
            raise BadJob(f"{worker.at('torchArgs')} has {each!r:.60}: colossalai splits it at a comma or a second =")
        found.append(each.removeprefix("--"))
    return ",".join(found)


def _overrides(part: Part, key: str) -> Mapping[str, Object]:
    """Return what a mode changes, by type of replica: its command and arguments, and whether init containers go."""
    found = {}
    for each in part.parts(key):
        if (type_ := each.text("type").lower()) not in _TYPES:
            raise BadJob(f"{each.at('type')} is {each.text('type')!r:.40}: launcher or worker")
        found[type_] = {
            "skip": each.flag("skipInitContainer"),
            "command": list(each.texts("command")),
            "args": list(each.texts("args")),
        }
    return found


def judge(view: JobView, counts: Mapping[str, Counts], known: KnownChildren) -> list[PodVerdict]:
    """Return the conditions that follow from the pods. The launcher's end is the job's, unless it names a host.

    A restarted worker is no longer in the host list. Source: CA-21, CA-23, CA-24, SD-17
    """
    launcher = next((pod for pod in known.pods if pod.role == LAUNCHER), None)
    name = f"{KIND} {view.name}"
    restarted = [pod for pod in known.pods if pod.role == WORKER and pod.restarts]
    if view.spec["debug"] is not None:
        pass
    elif launcher is not None and launcher.phase is JobPhase.SUCCEEDED:
        if failed := _FAILURE.findall(launcher.last_words):
            return [PodVerdict(Reason.FAILED, f"The launcher's summary names {', '.join(failed)}: failure.")]
        return [PodVerdict(Reason.SUCCEEDED, f"{name} is successfully completed.")]
    elif launcher is not None and restarted:
        return [
            PodVerdict(
                Reason.FAILED, f"Worker {restarted[0].name} started again and is out of the launcher's host list."
            )
        ]
    active = sum(count.active for count in counts.values())
    return [PodVerdict(Reason.RUNNING, f"{name} is running.")] if active == view.gang.min_member else []


def advice(view: JobView) -> Sequence[str]:
    """Return what a new job's owner should know. Source: CA-12, CA-18"""
    return list(_advice(view))


def _advice(view: JobView) -> Iterator[str]:
    spec = next(role for role in view.roles if role.name == WORKER).template["spec"]
    worker = next(each for each in spec["containers"] if each.get("name") == WORKER)
    if worker.get("command") or worker.get("args"):
        yield "spec.worker.template: the command of container worker has no effect: it runs sshd"
    limit = ((worker.get("resources") or {}).get("limits") or {}).get("memory")
    for volume in spec.get("volumes") or ():
        memory = volume.get("emptyDir")
        size = memory.get("sizeLimit") if isinstance(memory, Mapping) and memory.get("medium") == "Memory" else None
        if size is not None and limit is not None and _more(size, limit):
            yield f"spec.worker.template: volume {volume.get('name')} of {size} counts against the memory limit {limit}"


def _more(size: Any, limit: Any) -> bool:
    try:
        return amount("memory", size) > amount("memory", limit)
    except (BadQuantity, TypeError, AttributeError):
        return False


def _never_recreate(_view: JobView, _role: Role, _pod: PodState) -> bool:
    return False  # ranks are fixed, so no worker rejoins


COLOSSALAIJOB = Kind(
    KIND,
    (API,),
    "colossalaijobs",
    LAUNCHER,
    fields.refusing(_read),
    pods.labels,
    pods.selector,
    pods.pod_spec,
    pods.extras,
    judge,
    child_labels=LABELS,
    owns=("Pod", "Service", "ConfigMap"),
    name=pods.name,
    waiting_roles=pods.waiting_roles,
    recreate=_never_recreate,
    vocabulary=status.VOCABULARY,
    advice=advice,
    outdated=pods.outdated,
    tells_containers=True,
)
