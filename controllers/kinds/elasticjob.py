"""ElasticJobs of DLRover, whose workers meet at a master pod. Source: docs/facts/job-kinds.md 1.1; DL-09 to DL-27.

What differs from DLRover: its controller makes the workers too, so a master that dies takes nothing with it; the
master runs our coordinator unless the job names its own command; restart counts have no silent bound (SD-02); the
template's restartPolicy and resources stay as they are. What pods are told is written in elasticjob_pods.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.children import meta_of
from turnout.controllers.kinds import elasticjob_pods, fields
from turnout.controllers.kinds.elasticjob_pods import CONTAINER, LABELS, MASTER, PORT, WORKER, master_host, pod_name
from turnout.controllers.model import (
    ChildKey,
    CleanPods,
    Counts,
    GangSpec,
    JobPhase,
    JobView,
    Kind,
    KnownChildren,
    Later,
    Object,
    PodState,
    PodVerdict,
    Reason,
    Replica,
    Restart,
    Role,
    RunPolicy,
    StatusContext,
    StatusVocabulary,
    Wanted,
)
from turnout.jobs import command_line
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part
from turnout.kube.labels import MAX_WORKERS, MIN_WORKERS

KIND, API = "ElasticJob", "elastic.iml.github.io/v1alpha1"
MOST_NAME = 37  # characters: that of the master's Service is 26 longer, and at most 63
RESTARTS = 3  # of a worker or a master, unless the job says otherwise
WORKER_PORT = 3333  # of a worker's Service, as DLRover has it
FAULTY = 138  # a launcher's exit code: its check has found the node faulty
ALL_REDUCE = "AllreduceStrategy"
MODES = ("single-job", "manual", "manunal")  # the last is upstream's spelling
_SPECS = "spec.replicaSpecs"


def with_master_image(image: str) -> Kind:
    """Return the kind whose masters run in an image of their own, where the job names none. Source: DL-05"""
    return replace(ELASTICJOB, read=fields.refusing(partial(_read, image=image)))


def _read(raw: Object, image: str = "") -> JobView:
    meta, spec = Part(raw).part("metadata"), Part(raw).part("spec")
    fields.check_name(meta.value)
    if len(name := meta.text("name")) > MOST_NAME:
        raise BadJob(f"metadata.name has {len(name)} characters: at most {MOST_NAME}, for its master's name is longer")
    if (strategy := spec.text("distributionStrategy") or ALL_REDUCE) != ALL_REDUCE:
        raise BadJob(f"spec.distributionStrategy is {strategy!r:.40}: only {ALL_REDUCE} is run here")
    if (mode := spec.text("optimizeMode") or MODES[0]) not in MODES:
        raise BadJob(f"spec.optimizeMode is {mode!r:.40}: single-job or manual is needed, there is no brain service")
    parts = spec.by_name("replicaSpecs")
    if unknown := sorted(parts.keys() - {MASTER, WORKER}):
        raise BadJob(f"{_SPECS}.{unknown[0]:.40} is no role of {ALL_REDUCE}: {WORKER} and {MASTER} are")
    if WORKER not in parts:
        raise BadJob(f"{_SPECS}.{WORKER} is missing")
    worker, least, most = _worker(parts[WORKER], meta)
    master, coordinates = _master(parts.get(MASTER), worker, image)
    return JobView(
        api_version=raw["apiVersion"],
        kind=KIND,
        namespace=meta.text("namespace"),
        name=name,
        uid=meta.text("uid"),
        roles=(master, worker),
        policy=RunPolicy(spec.flag("suspend"), CleanPods.RUNNING),
        gang=GangSpec(least),
        spec={"coordinates": coordinates, "more_memory": mode == MODES[0], "most": most},
        elastic=least < most,
    )


def _worker(part: Part, meta: Part) -> tuple[Role, int, int]:
    """Read the workers, and the bounds of their number: as the owner's notes say, or --nnodes."""
    role = fields.role(WORKER, part, CONTAINER, None, _restart(part))
    stated = command_line.number_range(
        command_line.flag_value(command_line.command_words(part.part("template")), "--nnodes")
    )
    least, most = stated or (role.replicas, role.replicas)
    notes = meta.words("annotations")
    least, most = _count(notes, MIN_WORKERS, least), _count(notes, MAX_WORKERS, most)
    return replace(role, restart=_restart(part), most_restarts=_restarts(part)), min(least, most), max(least, most)


def _count(notes: Mapping[str, str], key: str, default: int) -> int:
    text = notes.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else default


def _restart(part: Part) -> Restart:
    """Return the kubelet's policy: that of the template, the role's, or Never, since we make failed pods anew."""
    template = part.part("template").part("spec")
    default = fields.word(part, "restartPolicy", Restart, Restart.NEVER)
    found = fields.word(template, "restartPolicy", Restart, default)
    return Restart.NEVER if found is Restart.EXIT_CODE else Restart(found)


def _restarts(part: Part) -> int:
    """Return how often one rank gets a new pod, in either spelling. Source: DL-15, DL-16, SD-02"""
    one, other = fields.whole_number(part, "restartCount"), fields.whole_number(part, "restartCounts")
    if one is not None and other is not None and one != other:
        raise BadJob(f"{part.at('restartCount')} is {one} and {part.at('restartCounts')} is {other}: say one of them")
    return next((each for each in (one, other) if each is not None), RESTARTS)


def _master(part: Part | None, worker: Role, image: str) -> tuple[Role, bool]:
    """Read the master; and whether our coordinator runs in it. Source: DL-21, DL-22"""
    part = part or Part({}, f"{_SPECS}.{MASTER}")
    if part.count("replicas", 1) != 1:
        raise BadJob(f"{part.at('replicas')} is {part.value['replicas']}: a job has one master")
    template = part.part("template")
    fields.check_template(template)
    containers = template.part("spec").parts("containers")
    if len(containers) > 1 and not any(each.text("name") == CONTAINER for each in containers):
        raise BadJob(f"{template.part('spec').at('containers')}: one container must be named {CONTAINER}")
    runs = command_line.command_words(template)
    full_template = elasticjob_pods.master_template(template.value, worker, image)
    role = Role(MASTER, 1, full_template, Restart.NEVER, most_restarts=_restarts(part), outside_gang=True)
    return role, not runs or elasticjob_pods.FLAG in runs


def name(view: JobView, role: Role, replica: Replica) -> str:
    """Return a pod's name. Source: DL-26"""
    return pod_name(view, role, replica.number)


def labels(view: JobView, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one pod: its id is its own, its rank is taken over."""
    numbers = {"replica-index": replica.number, "rank-index": replica.index, "relaunch-count": replica.restarts}
    return {**selector(view, role), **{f"elasticjob.dlrover/{key}": str(each) for key, each in numbers.items()}}


def selector(view: JobView, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    return {"app": "dlrover", LABELS.job: view.name, LABELS.role: role.label}


def extras(view: JobView, _known: KnownChildren) -> list[Wanted]:
    """Return the Services: the master's, and one for each rank of the workers."""
    found: list[Wanted] = []
    for role in view.roles:
        for index in range(role.replicas):
            head, port = (
                (master_host(view), PORT) if role.name == MASTER else (pod_name(view, role, index), WORKER_PORT)
            )
            found.append(Later(ChildKey("Service", head), partial(_service, view, role, index, head, port)))
    return found


def _service(view: JobView, role: Role, index: int, head: str, port: int) -> Object:
    """Return the Service of one rank, whichever pod has it now."""
    chosen = {**selector(view, role), LABELS.index: str(index)}
    ports = [{"name": "dlrover", "port": port}]
    spec = {"clusterIP": "None", "selector": chosen, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, head, chosen), "spec": spec}


def suspended_view(view: JobView) -> JobView:
    """Return the part of a suspended job that still runs: its master."""
    return replace(view, roles=tuple(role for role in view.roles if role.name == MASTER))


def recreate(_view: JobView, role: Role, pod: PodState) -> bool:
    """True unless a master reports that the job has failed. Failed pods are recreated up to their role's count."""
    return role.name != MASTER or pod.exit_code != 1


def judge(view: JobView, counts: Mapping[str, Counts], known: KnownChildren) -> Sequence[PodVerdict]:
    """Return the conditions that follow from the pods' phases.

    The success of the master, or of all workers, is the job's.
    """
    head = f"{KIND} {view.name}"
    worker = next(role for role in view.roles if role.name == WORKER)
    done = 0 < worker.replicas == counts[WORKER].succeeded
    if done or counts[MASTER].succeeded:
        return [PodVerdict(Reason.SUCCEEDED, f"{head} is successfully completed.")]
    if any(pod.phase is JobPhase.FAILED for pod in known.pods):
        return [PodVerdict(Reason.RESTARTING, f"{head} is restarting because pods failed.")]
    return [PodVerdict(Reason.RUNNING, f"{head} is running.")] if counts[WORKER].active else []


_PHASES = (Reason.FAILED, Reason.SUCCEEDED, Reason.SUSPENDED, Reason.RESTARTING, Reason.RUNNING)
_FIELDS = ("phase", "conditions", "replicaStatuses", "startTime", "completionTime")


def _in_our_words(status: Object) -> Object:
    return {key: each for key, each in status.items() if key != "phase"}


def _in_dlrovers_words(status: Object, _view: JobView | None, known: KnownChildren, _moment: StatusContext) -> Object:
    """Return the status with DLRover's phase."""
    true = (each for each in _PHASES if conditions.is_true(conditions.valid_conditions(status), each))
    before = JobPhase.PENDING.value if known.pods else Reason.CREATED.value
    phase: dict[str, Any] = {"phase": next((each.value for each in true), before)}
    return {**phase, **status}


ELASTICJOB = Kind(
    KIND,
    (API,),
    "elasticjobs",
    CONTAINER,
    fields.refusing(_read),
    labels,
    selector,
    elasticjob_pods.pod_spec,
    extras,
    judge,
    child_labels=LABELS,
    owns=("Pod", "Service"),
    name=name,
    suspended_view=suspended_view,
    recreate=recreate,
    vocabulary=StatusVocabulary(_FIELDS, _in_our_words, _in_dlrovers_words),
    numbered=True,
    faulty_node_exit_code=FAULTY,
)
