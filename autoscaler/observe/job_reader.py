"""Reads a job's annotations, and decides which of them count. Its owner may write any annotation, also ours.

A leader trusts the annotations that it has written itself. Earlier ones count only if neither the clock, nor the job's
age, nor its first worker contradicts them.

Lent workers are held on the terms of the time when they were lent. A raised min, changed sizes or unreadable
annotations do not make a borrowed worker the owner's own. Such changes count as soon as nothing is lent any more. The
next leader reads the terms from leader memory, and our annotations from the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from turnout.autoscaler.memory import Terms, trimmed
from turnout.jobs.annotations import unknown_names
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import BadJob, Bounds, Job, JobKey, ResizeBudget
from turnout.kube import labels
from turnout.kube.times import unix_s

Object = Mapping[str, Any]

OUR_NOTES = (labels.RESIZED_AT, labels.GAINED, labels.SIZED_AT_START, labels.TERM)
MAX_CLOCK_LEAD_S = 60.0  # the most that the previous leader's clock may be ahead of ours
STARTS_S = 60.0  # a change made as a job started came no later after its first worker


def plausible_budget(bank: ResizeBudget, created: str, began_s: float, now_s: float) -> ResizeBudget:
    """Return our annotations without impossible values. created: of the job. began_s: of its first worker, 0 for none.

    A change in the future counts as none, and a job cannot have won more time than has passed.
    """
    if not bank.resized_s or bank.resized_s > now_s + MAX_CLOCK_LEAD_S:
        return ResizeBudget(restart_s=bank.restart_s)
    most_s = max(0.0, bank.resized_s - (unix_s(created) or 0.0))
    at_start = bank.at_start and began_s - MAX_CLOCK_LEAD_S <= bank.resized_s <= began_s + STARTS_S
    if at_start == bank.at_start and bank.gained_s <= most_s:
        return bank
    return replace(bank, gained_s=min(bank.gained_s, most_s), at_start=at_start)


def _no_autoscaler(_key: JobKey) -> str:
    return ""


class JobReader:
    """A reader of objects of all kinds.

    kinds: by name. resized_by: returns the name of the HorizontalPodAutoscaler of a job, "" for none. faults: why a job
    cannot be read, by job. unknown: annotations that nobody reads, by job.
    """

    def __init__(self, kinds: Mapping[str, JobKind], resized_by: Callable[[JobKey], str] = _no_autoscaler) -> None:
        self._kinds, self._resized_by = kinds, resized_by
        self._terms: dict[str, Terms] = {}  # by the job's uid
        self._wrote: dict[str, dict[str, str]] = {}  # by the job's uid: our notes, as this leader has written them
        self.faults: dict[JobKey, str] = {}
        self.unknown: dict[JobKey, tuple[str, ...]] = {}

    def read(self, key: JobKey, uid: str, raw: Object) -> tuple[Job, Object] | None:
        """Return the job and its object as far as it counts; None for a job that cannot be read and is left alone.

        If workers are lent to a job whose annotations can no longer be read, the last readable ones count. Then the job
        gives workers back, and does not grow.
        """
        if names := unknown_names(raw["metadata"].get("annotations") or {}):
            self.unknown[key] = names
        else:
            self.unknown.pop(key, None)
        raw = _with_annotations(raw, self._wrote.get(uid, {}))
        try:
            job = self._on_lending_terms(self._left_to_hpa(key, self._kinds[key.kind].read(raw)), raw)
        except Exception as error:
            self.fault(key, error)
            return self._as_last_read(key, uid, raw)
        self.faults.pop(key, None)
        return job, raw

    def fault(self, key: JobKey, error: Exception) -> None:
        """Note that a job cannot be read."""
        self.faults[key] = str(error) if isinstance(error, BadJob) else f"it cannot be read: {error!r}"

    def note_written(self, uid: str, notes: Mapping[str, str]) -> None:
        """Take over the annotations that we have written on a job. From now on only these count."""
        self._wrote[uid] = {each: notes[each] for each in OUR_NOTES if each in notes}

    def lent_terms(self, jobs: Mapping[str, Job], growing: Collection[str]) -> dict[str, Terms]:
        """Return the terms of jobs above their min and of growing jobs. jobs, growing: by uid."""
        return {
            uid: trimmed(terms)
            for uid, job in jobs.items()
            if (terms := self._terms.get(uid)) is not None and (job.replicas > terms.least or uid in growing)
        }

    def restore_terms(self, uid: str, terms: Terms) -> None:
        """Take over the terms of a job from the previous leader. Read the job again after that."""
        self._terms[uid] = terms

    def forget_written(self) -> None:
        """Forget what we have written, since another leader may have written after us."""
        self._wrote.clear()

    def forget(self, uid: str, key: JobKey | None) -> None:
        """Forget a deleted job."""
        self._wrote.pop(uid, None)
        self._terms.pop(uid, None)
        if key is not None:
            self.faults.pop(key, None)
            self.unknown.pop(key, None)

    def _left_to_hpa(self, key: JobKey, job: Job) -> Job:
        """Refuse to resize a job that a HorizontalPodAutoscaler resizes."""
        name = "" if job.refused else self._resized_by(key)
        why = f"the HorizontalPodAutoscaler {name} resizes it, and two hands on one size fight"
        return replace(job, refused=why) if name else job

    def _on_lending_terms(self, job: Job, raw: Object) -> Job:
        """Return the job with the terms that count: those of its object, or those on which its workers were lent."""
        known = self._terms.get(job.uid)
        words = raw["metadata"].get("annotations") or {}
        if known is None or job.replicas <= known.least:
            self._terms[job.uid] = Terms(job.bounds.least, job.sizes, words, not job.refused)
            return job
        if job.refused and known.resizable:  # its workers can be taken, and it gets no more
            job = replace(job, refused="", bounds=Bounds(job.bounds.least, max(job.bounds.least, job.replicas)))
        if job.bounds.least <= known.least:
            self._terms[job.uid] = Terms(job.bounds.least, job.sizes, words, known.resizable)
            return job
        self._terms[job.uid] = replace(known, annotations=words)
        return replace(job, bounds=Bounds(known.least, job.bounds.most), sizes=known.sizes)

    def _as_last_read(self, key: JobKey, uid: str, raw: Object) -> tuple[Job, Object] | None:
        """Return a lent job by its last readable annotations, at most as large as now.

        So its workers can be taken back.
        """
        if (known := self._terms.get(uid)) is None:
            return None
        words = {name: text for name, text in known.annotations.items() if _is_read(name)}
        readable = _with_annotations(raw, words, without=True)
        try:
            job = self._on_lending_terms(self._left_to_hpa(key, self._kinds[key.kind].read(readable)), readable)
        except Exception:  # the spec is at fault, too
            return None
        most = max(job.bounds.least, min(job.replicas, job.bounds.most))
        lent = job.replicas > job.bounds.least
        return (replace(job, bounds=Bounds(job.bounds.least, most)), readable) if lent else None


def _with_annotations(raw: Object, words: Mapping[str, str], without: bool = False) -> Object:
    """Return the object with these annotations. without: leave out all others that an owner may write."""
    meta = raw["metadata"]
    had = meta.get("annotations") or {}
    notes = {**{name: text for name, text in had.items() if not (without and _is_read(name))}, **words}
    return raw if notes == had else {**raw, "metadata": {**meta, "annotations": notes}}


def _is_read(name: str) -> bool:
    return name.startswith(f"{labels.PREFIX}/") or name == labels.VOLCANO_COOLDOWN


class OtherAutoscalers:
    """Knows which jobs a HorizontalPodAutoscaler resizes, since two programs must not write one size.

    It counts only for jobs of its own namespace, as its scale reference does. kinds: by name. changed: called with a
    job that got or lost one.
    """

    def __init__(self, kinds: Mapping[str, JobKind], changed: Callable[[JobKey], None]) -> None:
        self._kinds = {(_group(kind.api_version), kind.object_kind or kind.kind): kind.kind for kind in kinds.values()}
        self._changed = changed
        self._targets: dict[tuple[str, str], JobKey] = {}  # namespace and name of an autoscaler -> its job
        self._names: dict[JobKey, set[str]] = {}

    def put(self, namespace: str, name: str, api_version: str, kind: str, job: str) -> None:
        """Store what a HorizontalPodAutoscaler resizes. api_version, kind, job: of its scale reference."""
        found = self._kinds.get((_group(api_version), kind))
        target = None if found is None else JobKey(found, namespace, job)
        if self._targets.get((namespace, name)) == target:
            return
        self.drop(namespace, name)
        if target is not None:
            self._targets[namespace, name] = target
            self._names.setdefault(target, set()).add(name)
            self._changed(target)

    def drop(self, namespace: str, name: str) -> None:
        """Drop a deleted HorizontalPodAutoscaler."""
        if (target := self._targets.pop((namespace, name), None)) is not None:
            self._names[target].discard(name)
            if not self._names[target]:
                del self._names[target]
            self._changed(target)

    def of(self, key: JobKey) -> str:
        """Return the name of the autoscaler that resizes a job, the first by name; "" for none."""
        return min(self._names.get(key, ()), default="")


def _group(api_version: str) -> str:
    return api_version.partition("/")[0] if "/" in api_version else ""
