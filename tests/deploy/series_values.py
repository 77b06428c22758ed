"""Synthetic series of every metric of the registries, with label values of the code's own enums."""

from itertools import product

from hack.codegen import reference
from turnout.autoscaler.model import GangReason
from turnout.autoscaler.model import Reason as ScalingReason
from turnout.autoscaler.node_faults.model import FaultState, NodeReason
from turnout.autoscaler.reporting.usage import IdleReason
from turnout.controllers.model import JobPhase, RestartReason
from turnout.controllers.model import Reason as ControllerReason
from turnout.jobs.reservation import PUBLISHED_REASONS
from turnout.launcher.goodput.job_time import TimeKind
from turnout.launcher.model import Reason as RoundReason
from turnout.launcher.model import SaveOutcome, SaveTier
from turnout.scheduler_ext.gates.evictions import ReservationEnd
from turnout.scheduler_ext.model import EventReason, LiftReason
from turnout.scheduler_ext.planner.answers import GangRule, GangState
from turnout.scheduler_ext.planner.nominations import NominationReason
from turnout.scheduler_ext.planner.request import HardTerm
from turnout.scheduler_ext.server.extender import REFUSALS
from turnout.scheduler_ext.server.metrics import PATCH_ERRORS, UNJUDGED
from turnout.scheduler_ext.server.requests import Outcome, Verb
from turnout.scheduler_ext.writers.eviction_writer import EvictionOutcome
from turnout.topology.map_update import MapOutcome

OUTCOMES = ("Written", "DryRun", "Conflict", "Refused", "NotLeading")  # of changes of jobs and nodes
BUCKETS = ("0.25", "0.5", "1.0", "60.0", "+Inf")
QUEUE_OF_JOB = {"bert": "default", "gpt": "team-b"}
QUEUES = tuple(QUEUE_OF_JOB.values())


def values_of(enum):
    return tuple(each.value for each in enum)


# The values of a label wherever it occurs, and those of one metric.
OF_LABEL = {
    "queue": QUEUES,
    "lender": ("default",),
    "borrower": ("team-b",),
    "version": ("0.1.0",),
    "commit": ("c0ffee",),
    "verb": values_of(Verb),
    "phase": ("decode", "plan", "encode"),
    "resource": ("pods",),
    "direction": ("grow", "shrink"),
    "kind": values_of(TimeKind),
    "part": ("min", "elastic"),
    "bound": ("earliest", "likely", "latest"),
    "job_kind": ("VolcanoJob",),
    "job_namespace": ("ns",),
    "job_name": tuple(QUEUE_OF_JOB),
    "gang_namespace": ("ns",),
    "gang_name": ("bert",),
    "rank": ("3",),
    "run": ("bert",),
    "tier": ("1", "2"),
    "excess": ("0", "1", "2", "3+"),
    "rule": values_of(GangRule),
    "term": values_of(HardTerm),
    "as_nominated": ("true", "false"),
    "what": ("nomination", "gate", "switch_path", "reservation"),
    "error": PATCH_ERRORS,
    "result": ("early", "inside", "late"),
}
OF_METRIC = {
    ("turnout_extender_requests", "outcome"): values_of(Outcome),
    ("turnout_extender_errors", "reason"): ("late", "failed"),
    ("turnout_extender_refused_answers", "reason"): tuple(reason.value for reason in REFUSALS),
    ("turnout_extender_unjudged_answers", "reason"): UNJUDGED,
    ("turnout_topology_reloads", "outcome"): values_of(MapOutcome),
    ("turnout_tls_reloads", "outcome"): ("taken", "refused"),
    ("turnout_gangs", "state"): values_of(GangState),
    ("turnout_nominations", "reason"): values_of(NominationReason),
    ("turnout_gates_lifted", "reason"): values_of(LiftReason),
    ("turnout_gate_evictions", "outcome"): values_of(EvictionOutcome),
    ("turnout_gang_repairs", "reason"): (EventReason.GANG_MOVED.value, EventReason.GANG_GIVEN_UP.value),
    ("turnout_gate_oldest_seconds", "reason"): ("planned",),
    ("turnout_reserved_hosts", "reason"): tuple(reason.value for reason in PUBLISHED_REASONS),
    ("turnout_reservations_ended", "reason"): tuple(reason.value for reason in PUBLISHED_REASONS),
    ("turnout_reservations_ended", "end"): values_of(ReservationEnd),
    ("turnout_autoscaler_changes", "reason"): (ScalingReason.IDLE_ROOM.value, ScalingReason.MAKES_ROOM.value),
    ("turnout_autoscaler_changes", "outcome"): OUTCOMES,
    ("turnout_gang_min_changes", "reason"): values_of(GangReason),
    ("turnout_gang_min_changes", "outcome"): ("Written", "Conflict", "Refused", "Skipped"),
    ("turnout_node_changes", "reason"): values_of(NodeReason),
    ("turnout_node_changes", "outcome"): OUTCOMES,
    ("turnout_node_verdicts_skipped", "reason"): values_of(NodeReason),
    ("turnout_queue_gpus", "type"): ("limit", "deserved", "used", "available"),
    ("turnout_queue_jobs", "state"): ("running", "waiting", "suspended"),
    ("turnout_queue_jobs_by_reason", "reason"): values_of(ScalingReason),
    ("turnout_job_reason", "reason"): (ScalingReason.NEEDS_MORE.value,),
    ("turnout_gpu_nodes", "state"): ("all", *values_of(FaultState)),
    ("turnout_cluster_gpus", "state"): ("used", "free", "faulty", "unschedulable"),
    ("turnout_idle_gpu_seconds", "reason"): values_of(IdleReason),
    ("turnout_api_requests", "verb"): ("get", "patch"),
    ("turnout_api_requests", "code"): ("2xx", "403", "409"),
    ("turnout_controller_writes", "verb"): ("create", "patch", "delete"),
    ("turnout_controller_events", "reason"): values_of(ControllerReason),
    ("turnout_controller_restarts", "reason"): values_of(RestartReason),
    ("turnout_controller_jobs", "phase"): values_of(JobPhase),
    ("turnout_launcher_rounds", "reason"): values_of(RoundReason),
    ("turnout_launcher_saves", "tier"): values_of(SaveTier),
    ("turnout_launcher_saves", "outcome"): values_of(SaveOutcome),
    ("turnout_launcher_last_save_timestamp_seconds", "tier"): values_of(SaveTier),
    ("turnout_launcher_save_interval_seconds", "tier"): values_of(SaveTier),
    ("turnout_launcher_members_lost", "reason"): values_of(RoundReason),
    ("turnout_launcher_coordinators_lost", "reason"): values_of(RoundReason),
}
GAUGES = {  # of a plausible moment; every other gauge is 1
    "turnout_autoscaler_observation_age_seconds": 2.0,
    "turnout_controller_clock_jump_seconds": 0.0,
    "turnout_launcher_save_interval_seconds": 600.0,
    "turnout_job_promised_start_timestamp_seconds": 2e9,
    "turnout_job_predicted_start_timestamp_seconds": 2e9,
    "turnout_gpu_nodes_taint_limit": 4.0,
    "turnout_tls_certificate_expiry_timestamp_seconds": 2e9,
}
_JOB = {"job_namespace": "ns", "job_kind": "VolcanoJob", "job_name": "bert"}
PROGRAM_TARGETS = {
    "turnout-extender": ({"pod": "extender-1"}, {"pod": "extender-2"}),
    "turnout-nominator, besides those of the extender": ({"pod": "nominator-1"},),
    "turnout-autoscaler": ({"pod": "autoscaler-1"},),
    "turnout-controller": ({"pod": "controller-1"},),
    "turnout page --serve": ({"pod": "page-1"},),
    "turnout-run": ({**_JOB, "pod": "bert-0"},),
}


def labels_of(metric):
    """Return the labels of a metric, by its name with `_total`."""
    return next(labels for name, _, labels, _ in families() if name == metric.removesuffix("_total"))


def values_of_label(metric, label):
    """Return the values that a label of a metric may have, None for an open set."""
    if label in ("queue", "lender", "borrower", "job_name", "job_kind", "pod", "cluster", "resource", "rank"):
        return None
    if label == "component":
        return ("autoscaler", "controller", "extender", "nominator", "page")
    return OF_METRIC.get((metric.removesuffix("_total"), label)) or OF_LABEL.get(label)


def families():
    """Yield (name without `_total`, type, labels, target's labels) of every metric of every program."""
    for program, registry in reference.registries().items():
        component = program.removeprefix("turnout").strip(" -").partition(",")[0].partition(" ")[0]
        for metric, labels in reference.families(registry):
            for target in PROGRAM_TARGETS[program]:
                yield metric.name, metric.type, labels, {**target, "component": component}


def combinations(name, labels, component):
    """Yield the label values of each series of a metric."""
    values = [
        (component,) if label == "component" else OF_METRIC.get((name, label)) or OF_LABEL[label] for label in labels
    ]
    for row in product(*values):
        series = {label: value for label, value in zip(labels, row, strict=True) if label != "run"}
        if "job_name" not in series or QUEUE_OF_JOB[series["job_name"]] == series["queue"]:
            yield series


def lines(name, kind, series, times_s):
    """Yield the samples of one series in the text format of OpenMetrics. series: its labels."""

    def line(suffix, labels, value, at_s):
        text = ",".join(f'{label}="{each}"' for label, each in sorted(labels.items()))
        return f"{name}{suffix}{{{text}}} {value} {at_s}"

    for at_s in times_s:
        age_s = at_s - times_s[0]
        if kind == "counter":
            yield line("_total", series, age_s / 60, at_s)
        elif kind == "histogram":
            for index, le in enumerate(BUCKETS):
                yield line("_bucket", {**series, "le": le}, age_s / 60 * (index + 1), at_s)
            yield line("_sum", series, age_s / 60, at_s)
            yield line("_count", series, age_s / 60 * len(BUCKETS), at_s)
        else:
            is_past = name.endswith("_timestamp_seconds") and name not in GAUGES
            yield line("", series, at_s - 30 if is_past else GAUGES.get(name, 1.0), at_s)


def exposition(times_s, cluster):
    """Return all series at each time, in the text format of OpenMetrics. cluster: a label of all, "" for none."""
    by_name = {}
    for name, kind, labels, target in families():
        fixed = {label: value for label, value in target.items() if label != "component"}
        for row in combinations(name, labels, target["component"]):
            series = {**row, **fixed, **({"cluster": cluster} if cluster else {})}
            by_name.setdefault((name, kind), []).append(series)
    text = []
    for (name, kind), rows in by_name.items():
        text.append(f"# TYPE {name} {kind}")
        text += [each for series in rows for each in lines(name, kind, series, times_s)]
    return "\n".join([*text, "# EOF", ""])
