"""Why a job has its size or waits: the chain of its decision as text. Also finds the job of a name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from turnout.autoscaler.model import JobState
from turnout.autoscaler.reporting.forecast import NEVER, Estimate
from turnout.autoscaler.reporting.why import (
    Chain,
    Holder,
    QueueSection,
    ResourceNeed,
    RoomSection,
    SizeSection,
    UnmanagedGang,
)
from turnout.cli.job_names import GANG_KINDS, JobName, words_of
from turnout.jobs.gang import Remedy, most_patient, repair_of
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import amount_text
from turnout.kube.times import rfc3339, unix_s

Row = tuple[str, str]  # what it is about, and the text


class NoSuchJob(Exception):
    """The name means no job, or several. The message lists those that may be meant."""


def known_words() -> dict[str, str]:
    """Return the kinds that may be asked for, as job_names.read takes them: word -> kind, in a new mapping."""
    return words_of((*KINDS, *GANG_KINDS), {name: kind.path for name, kind in KINDS.items()})


def resolve_job(job_name: JobName, keys: Iterable[JobKey]) -> JobKey:
    """Return the only key with this name, in the namespace of the name.

    Raises NoSuchJob, with similar names, if none has it. Raises NoSuchJob, too, if keys of several kinds have it.
    """
    sorted_keys = sorted(keys)
    name, where = job_name.name, job_name.namespace
    matches = [
        key for key in sorted_keys if (key.name, key.namespace) == (name, where) and _is(key.kind, job_name.kind)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NoSuchJob(f"{name!r} may be {' or '.join(map(str, matches))}: say which")
    similar = similar_keys(name, sorted_keys)
    hint = (
        f"; did you mean {', '.join(map(str, similar))}?" if similar else f"; there are {len(sorted_keys)} jobs in all"
    )
    raise NoSuchJob(f"there is no {job_name.kind or 'job'} {name!r} in namespace {where}{hint}")


def similar_keys(name: str, keys: Sequence[JobKey], maximum: int = 5) -> list[JobKey]:
    """Return at most `maximum` keys with names similar to `name`, the most similar first; [] if none is similar."""
    like = get_close_matches(name, sorted({key.name for key in keys}), n=maximum, cutoff=0.5)
    return [key for each in like for key in keys if key.name == each][:maximum]


def _is(kind: str, word: str) -> bool:
    """Return True if `kind` is the kind `word`, in any group; also if `word` is ""."""
    return not word or kind == word or kind.startswith(f"{word}.")


def title(chain: Chain) -> str:
    """Return the job, its state, and the reason word."""
    since = "" if chain.since_s is None else f" for {duration_text(chain.now_s - chain.since_s)}"
    state = {"waiting": f"has waited{since}", "running": f"has run{since}", "suspended": "is suspended"}[chain.state]
    return f"{chain.job} {state}: {chain.reason.value}"


def rows(chain: Chain) -> list[Row]:
    """Return the chain of causes as rows: (label, text)."""
    queue_rows = [*_queue(chain.queue), *_quota(chain)]
    queue_rows += [("room", _room_text(chain.room)), ("gang", _gang_text(chain))]
    if chain.size is not None:
        queue_rows += _size(chain.size, chain.gang.minimum, chain.gang.maximum)
    queue_rows.append(("decision", _decision_text(chain)))
    queue_rows.append(("next", chain.advice))
    if chain.start is not None:
        queue_rows.append(("start", start_text(chain.start, chain.now_s)))
    return queue_rows


def with_controller_report(why_rows: Sequence[Row], text: str, remedy: str) -> list[Row]:
    """Return the rows with the controller's report before them, as a new list.

    text: of the report. remedy: replaces the row "next", at the end; "" keeps that row.
    """
    found = [("controller", text), *((label, each) for label, each in why_rows if not remedy or label != "next")]
    return [*found, ("next", remedy)] if remedy else found


def _queue(queue: QueueSection) -> list[Row]:
    """Return the two rows on a job's queue: its GPUs and limits, and which jobs hold them."""
    if queue.known:
        parts = [f"{queue.used} of {gpus(queue.limit)} used" if queue.limit is not None else f"{gpus(queue.used)} used"]
        parts.append("no limit" if queue.free is None else f"{queue.free} free")
        if queue.deserved is not None:
            borrowed = queue.used - queue.deserved
            parts.append(f"{queue.deserved} its own" + (f", so {borrowed} borrowed" if borrowed > 0 else ""))
        text = f"{queue.name}: {', '.join(parts)}"
    else:
        text = f"{queue.name}: nobody describes it, so the nodes alone bound it; {gpus(queue.used)} used"
    text += f", {queue.headroom} kept free" if queue.headroom else ""
    text += "" if queue.open else "; it is closed"
    holders = ", ".join(_holder_text(each) for each in queue.holders)
    more = f", and {count(queue.others, 'other job')}" if queue.others else ""
    return [("queue", text), ("held by", f"{holders}{more}" if holders else "nobody")]


def _holder_text(holder: Holder) -> str:
    return f"{holder.job} ({holder.min_part_gpus}{f' + {holder.elastic_gpus} elastic' if holder.elastic_gpus else ''})"


def _quota(chain: Chain) -> list[Row]:
    """Return one row on what a job requests of its queue's quota, with each resource that has a limit."""
    if not chain.queue.known:
        return [("quota", "none")]
    if chain.state != "waiting" and (chain.size is None or chain.size.larger is None):
        return [("quota", "it asks for nothing more")]
    what = "its min lacks" if chain.state == "waiting" else "its next step takes"
    bound = [each for each in chain.quota if each.limit is not None]
    if not bound:
        return [("quota", "no limit on what it asks for")]
    return [
        (
            "quota",
            "; ".join(f"{what} {_need_text(each)}" if not at else _need_text(each) for at, each in enumerate(bound)),
        )
    ]


def _need_text(need: ResourceNeed) -> str:
    """Return in words how much of a resource a job needs, and how much is free and missing in its queue.

    If the job needs more than the queue's limit, only this is said.
    """
    free, needs = need.free or 0, amount_text(need.resource, need.needs)
    if need.limit is not None and need.needs > need.limit:
        return f"{needs}, and the queue may never have more than {amount_text(need.resource, need.limit)}"
    short = "enough" if need.needs <= free else f"{amount_text(need.resource, need.needs - free).split()[0]} short"
    return f"{needs}, {free and amount_text(need.resource, free).split()[0]} free: {short}"


def _room_text(room: RoomSection) -> str:
    """Return in words how many workers fit now, and the four most frequent reasons why other nodes admit none."""
    if not room.nodes:
        return "there are no nodes"
    let_in = f"{room.admits} of {count(room.nodes, 'node')} let a worker in ({room.worker})"
    why = ", ".join(f"{number} {why}" for why, number in room.refusals[:4])
    if why:
        let_in += f"; the others: {why}"
    if not room.fits:
        text = f"{let_in}; no whole worker fits now"
        return text + ("" if room.fits_when_empty else ", and none would fit in the empty cluster")
    fit = "fits" if room.fits == 1 else "fit"
    return f"{let_in}; {count(room.fits, 'whole worker')} {fit} now, on {count(room.with_room, 'node')}"


def _gang_text(chain: Chain) -> str:
    """Return in words how many members of a gang have a node, how many it needs, and what limits its nodes."""
    gang = chain.gang
    if chain.state == "waiting":
        text = f"it needs {count(gang.minimum, 'worker')}, {gang.bound} with a node: {gang.missing} lacking"
        if gang.bound < gang.existing < gang.minimum:
            text += f"; {gang.existing} exist"
        if chain.room.fits_when_empty < gang.missing:
            text += f", and at most {chain.room.fits_when_empty} would fit in the empty cluster"
    else:
        text = f"{count(gang.bound, 'worker')} with a node; it needs {gang.minimum}"
    text += f"; it may have {gang.maximum}" if gang.maximum > gang.minimum else ""
    text += f"; {gang.finished} have ended well" if gang.finished else ""
    text += "".join(f"; {existing} of {replicas} of another role" for existing, replicas in gang.other_roles)
    text += "" if gang.tier is None else f"; all under one switch of tier {gang.tier}"
    return text + (f"; {gang.multiple} on each node" if gang.multiple > 1 else "")


def _size(size: SizeSection, minimum: int, maximum: int) -> list[Row]:
    """Return the rows on a job's size, and on what lending gained or cost it. minimum, maximum: its min and max."""
    larger = "no larger size is wanted" if size.larger is None else f"the next size is {size.larger}"
    text = f"{count(size.size, 'worker')} of {minimum} to {maximum}, {size.elastic} of them elastic; {larger}"
    if size.size != size.requested:
        text += f"; {size.requested} are asked for"
    if size.reapplied_size is not None:
        text += "; its object was applied again as it was submitted, "
        text += f"which took it from {size.reapplied_size} to {size.requested}"
    if size.manual_size is not None:
        text += f"; somebody has set its size to {size.manual_size} by hand, and it is not made larger until the"
        text += " annotation turnout.dev/wish-workers is removed"
    if size.changed_s is None:
        return [("size", text), ("balance", "its size has never been changed by the autoscaler")]
    balance = duration_text(abs(size.balance_s))
    won = f"lending has won it {balance}, restarts taken off"
    if size.balance_s < 0:
        won = f"restarts have cost it {balance} more than lending has won it"
    left = f"{duration_text(size.cooldown_s)} of its cooldown are left" if size.cooldown_s else "its cooldown is over"
    return [("size", text), ("balance", f"{won}; last changed at {rfc3339(size.changed_s)}, {left}")]


def _decision_text(chain: Chain) -> str:
    """Return in words what was decided on the job and why, and which jobs shrink for it."""
    change = (
        f"{chain.workers_before} to {count(chain.workers, 'worker')}. " if chain.workers != chain.workers_before else ""
    )
    text = f"{change}{chain.explanation}"
    text += f" {chain.detail[:1].upper()}{chain.detail[1:]}." if chain.detail else ""
    if chain.shrinking_jobs:
        text += " " + ", ".join(f"{job} goes from {was} to {size}" for job, was, size in chain.shrinking_jobs) + "."
    return text


def start_text(estimate: Estimate, now_s: float) -> str:
    """Return in words when a waiting job may start: earliest, likely and latest time. now_s: since 1970."""
    early, likely, late = (max(0.0, at_s - now_s) for at_s in (estimate.early_s, estimate.likely_s, estimate.late_s))
    if estimate.early_s == NEVER:
        return estimate.because
    if not estimate.known:
        soonest = f", not before {duration_text(early)}" if 0 < early < NEVER else ""
        return f"not known{soonest}: {estimate.because}"
    first = f"{duration_text(early)} at the earliest" if early >= 1 else "at once at the earliest"
    last = f"{duration_text(late)} at the latest" if late < NEVER else "with no bound"
    return f"likely in {duration_text(likely)} ({rfc3339(estimate.likely_s)}), {first}, {last}: {estimate.because}"


def duration_text(s: float) -> str:
    """Return a time in words: in s, min, h or days, such as 5 min. s: seconds; below 0 counts as 0."""
    s = max(0.0, s)
    if s < 120:
        return f"{s:.0f} s"
    if s < 7200:
        return f"{s / 60:.0f} min"
    if s < 172_800:
        return f"{s / 3600:.1f} h"
    return f"{s / 86_400:.1f} days"


def count(number: int, one: str) -> str:
    """Return a number with its noun, as in "1 worker" and "2 workers". one: the noun in the singular."""
    return f"{number} {one}{'' if number == 1 else 's'}"


def gpus(number: int) -> str:
    """Return a number of GPUs as text, as in "1 GPU" and "2 GPUs"."""
    return count(number, "GPU")


def unmanaged_gang_text(gang: UnmanagedGang, resources: tuple[str, ...]) -> str:
    """Return two sentences about a running gang that no job of a known kind owns: its pods and GPUs, and why it is
    never resized.

    resources: names of GPU resources.
    """
    held_gpus = sum(shape.gpus(resources) for _, shape in gang.bound_pods)
    count_bound, size = len(gang.bound_pods), count(gang.existing, "pod")
    return (
        f"{gang.key} runs: {count_bound} of its {size} have a node and hold {gpus(held_gpus)} of queue {gang.queue}. "
        "No job of a kind that the autoscaler knows owns it, so it is never resized."
    )


_MAX_SAID = 3


@dataclass(frozen=True, slots=True)
class LimitedView:
    """What is known of a job from its own pods."""

    job: str
    min_workers: int
    pods: int  # existing pods
    placed_pods: int  # pods with a node
    scheduler_messages: tuple[str, ...]  # on the pods without a node
    missing: tuple[str, ...]  # resources that may not be listed in the whole cluster
    waited_s: float | None  # since its creation; None if it does not wait, or if that time is unknown

    @classmethod
    def of(
        cls, job_state: JobState, pods: Iterable[Pod], pod_count: int, missing: tuple[str, ...], now_s: float
    ) -> LimitedView:
        """Return what a job's own pods show. pod_count: number of its existing pods. now_s: since 1970.

        missing: resources that may not be listed in the whole cluster.
        """
        pods = list(pods)
        created_s = unix_s(job_state.job.created)
        messages = dict.fromkeys(message for pod in pods if not pod.spec.node_name and (message := refusal(pod)))
        minimum, has = job_state.job.bounds.minimum, sum(bool(pod.spec.node_name) for pod in pods)
        waits_s = max(0.0, now_s - created_s) if created_s is not None and has < minimum else None
        return cls(str(job_state.job.key), minimum, pod_count, has, tuple(messages)[:_MAX_SAID], missing, waits_s)


def refusal(pod: Pod) -> str:
    """Return what the scheduler says of a pod that it has not placed; "" for nothing."""
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next((each.message for each in conditions if each.status == "False"), "")


def limited_title(view: LimitedView) -> str:
    """Return the job and its state, as far as its own pods show it."""
    state = "waits for its min" if view.placed_pods < view.min_workers else "runs"
    since = "" if view.waited_s is None else f", for {duration_text(view.waited_s)}"
    return f"{view.job} {state}{since}, as far as you may see"


def limited_rows(view: LimitedView) -> list[Row]:
    """Return the rows about a job of which the user may read only its own pods."""
    gang = (
        f"it needs {count(view.min_workers, 'worker')}; {count(view.pods, 'pod')} exist, {view.placed_pods} with a node"
    )
    if 0 < view.pods < view.min_workers:
        gang += f": it waits for {count(view.min_workers - view.pods, 'more member')}"
    found = [("gang", gang)]
    found += [("scheduler", text) for text in view.scheduler_messages]
    return found


def repair_of_job(pods: Sequence[Pod], minimum: int) -> str | None:
    """Return a sentence on the repair of a broken gang.

    None unless some, but fewer than `minimum`, of its pods run and others wait. pods: existing pods. minimum: number of
    pods that must run together.
    """
    living = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    running = [pod for pod in living if pod.spec.node_name]
    if not 0 < len(running) < minimum or len(running) == len(living):
        return None
    faults: list[str] = []
    repairs = [found for pod in living if (found := repair_of(pod.metadata.annotations or {}, faults)) is not None]
    repair = most_patient(repairs)
    holds = f"{len(running)} of the {minimum} that must run together have a node"
    if repair.remedy is Remedy.WAIT:
        how = "none of them moves" if repairs else f"none of them moves, since no pod says {labels.REPAIR}"
        return f"{holds}, and the rest waits for room near them: {how}"
    where = ", and as soon as all of it fits elsewhere" if repair.remedy is Remedy.MOVE else ""
    then = f"after {repair.after_s} s without room for the rest{where}, those that run are evicted"
    return f"{holds}; {then} ({labels.REPAIR}: {repair.remedy.value}, by turnout-nominator --repair)"
