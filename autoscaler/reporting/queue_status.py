"""The status of a queue for kubectl: one ConfigMap for each queue, with the reasons of the last decision."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from turnout.autoscaler.gpu_sums import Gpus, bound, free, largest, total
from turnout.autoscaler.model import JobState, Observation, Step
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import Queue, bounds_several

PREFIX = "turnout-queue-"
LABEL = "turnout.dev/queue-status"
MOST_JOBS = 100  # told of each sort; the rest is counted


def name_of(queue: str) -> str:
    """Return the ConfigMap's name: the queue's, as far as names allow, with a digest if it was changed."""
    plain = re.sub(r"[^a-z0-9-]+", "-", queue.lower()).strip("-")[:180]
    if plain == queue:
        return PREFIX + plain
    digest = hashlib.sha256(queue.encode()).hexdigest()[:8]
    return f"{PREFIX}{plain}-{digest}" if plain else PREFIX + digest


def pages(observation: Observation, steps: Iterable[Step], gpus: Gpus, dry_run: bool) -> dict[str, dict[str, str]]:
    """Return the data of each queue's ConfigMap, by queue. Equal input gives equal data."""
    of: dict[str, list[JobState]] = {name: [] for name in observation.queues if not bounds_several(name)}
    for each in observation.jobs:
        of.setdefault(each.job.queue, []).append(each)
    decided = {step.key: step for step in steps}
    return {
        name: {
            "queue": name,
            "status": json.dumps(_page(observation.queues.get(name), jobs, decided, gpus, dry_run), indent=1),
        }
        for name, jobs in of.items()
    }


def _page(
    queue: Queue | None, jobs: list[JobState], decided: Mapping[JobKey, Step], gpus: Gpus, dry_run: bool
) -> dict[str, Any]:
    waiting = [each for each in jobs if each.is_waiting]
    lent = sorted((each for each in jobs if _elastic(each)), key=lambda each: (-_elastic(each), each.job.key))
    page: dict[str, Any] = {"mode": "observe" if dry_run else "act"}
    if queue is not None:
        amounts = {
            "used": total(queue.used, gpus),
            "limit": bound(queue.limit, gpus),
            "deserved": bound(queue.deserved, gpus),
            "headroom": largest(queue.headroom, gpus) if any(each in queue.headroom for each in gpus) else None,
            "free": free(queue.limit, queue.used, gpus),
        }
        page |= {"open": queue.open, "gpus": {what: amount for what, amount in amounts.items() if amount is not None}}
    page["jobs"] = {"running": len(jobs) - len(waiting), "waiting": len(waiting)}
    page["elasticWorkers"] = sum(_elastic(each) for each in lent)
    page["elasticGpus"] = sum(_elastic(each) * each.job.shape.gpus(gpus) for each in lent)
    for title, some in (("waiting", waiting), ("lent", lent)):
        page[title] = [_line(each, decided) for each in some[:MOST_JOBS]]
        if len(some) > MOST_JOBS:
            page[f"{title}LeftOut"] = len(some) - MOST_JOBS
    return page


def _line(state: JobState, decided: Mapping[JobKey, Step]) -> dict[str, Any]:
    job, step = state.job, decided.get(state.job.key)
    line: dict[str, Any] = {"job": str(job.key), "has": state.bound_workers, "min": job.bounds.least, "max": job.most}
    if step is not None:
        line["reason"] = step.reason.value
        if step.changes:
            line["becomes"] = step.target
    return line


def _elastic(state: JobState) -> int:
    return max(0, state.bound_workers - state.job.bounds.least)
