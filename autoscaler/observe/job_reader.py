"""Keep the jobs, read their annotations, and decide which of them count. Owners may write any annotation, also ours.

A leader trusts the annotations that it has written itself. Earlier ones count only if neither the clock, nor the job's
age, nor its first worker contradicts them.

While workers are lent, the min, sizes and annotations count that the job had when they were lent. A raised min, changed
sizes or unreadable annotations do not make a borrowed worker the owner's own. Such changes count as soon as nothing is
lent any more. The next leader reads the terms from leader memory, and our annotations from the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from turnout.autoscaler.memory import Terms, trimmed_terms
from turnout.autoscaler.observe.packed import Packed
from turnout.jobs.annotations import unknown_names
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import BadJob, Bounds, Job, JobKey, ResizeBudget
from turnout.kube import labels
from turnout.kube.times import unix_s

Object = Mapping[str, Any]


class JobTable:
    """The jobs that exist, readable or not.

    kinds: by name. by_uid: the readable jobs. raw: the objects of the readable jobs. uids: of all jobs. keys: the names
    of all jobs, by uid.
    """

    def __init__(self, kinds: Mapping[str, JobKind]) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._kinds = kinds
        self.by_uid: dict[str, Job] = {}
        self.raw: dict[JobKey, Object] = {}
        self.uids: dict[JobKey, str] = {}
        self.keys: dict[str, JobKey] = {}
        self._unreadable: dict[str, Object] = {}  # objects of jobs that cannot be read, by uid
        self._parts: set[str] = set()  # uids of jobs that another object has created

    def put(self, uid: str, key: JobKey, job: Job, raw: Object) -> None:
        """Store a readable job in place of its earlier version. uid, key, raw: of its object."""
        self._unreadable.pop(uid, None)
        self.by_uid[uid], self.raw[key] = job, Packed(raw)
        self.keys[uid], self.uids[key] = key, uid
        if job.part_of:
            self._parts.add(uid)

    def put_unreadable(self, uid: str, key: JobKey, raw: Object) -> None:
        """Store the object of a job that cannot be read. The caller has dropped its readable version."""
        self._unreadable[uid] = Packed(raw)
        self.keys[uid], self.uids[key] = key, uid

    def drop(self, uid: str) -> Job | None:
        """Drop a job by its uid. Return its readable version, None without one. An unknown job is ignored."""
        self._unreadable.pop(uid, None)
        key = self.keys.pop(uid, None)
        if key is not None:
            self.raw.pop(key, None)
            if self.uids.get(key) == uid:
                del self.uids[key]
        self._parts.discard(uid)
        return self.by_uid.pop(uid, None)

    def uid(self, key: JobKey) -> str:
        """Return the uid of a job; "" for an unknown job."""
        return self.uids.get(key, "")

    def object_of(self, key: JobKey) -> Object | None:
        """Return the object of a job, readable or not; None for an unknown job."""
        return self._unreadable.get(self.uid(key)) or self.raw.get(key)

    def parts(self) -> set[str]:
        """Return the uids of the readable jobs that are a part of another readable job."""
        return {uid for uid in self._parts if self.by_uid[uid].part_of in self.by_uid}

    def identity(self, key: JobKey) -> tuple[str, str, str] | None:
        """Return (kind, API version, uid) of a job, for Events; None for an unknown job."""
        if (uid := self.uids.get(key)) is None:
            return None
        kind = self._kinds[key.kind]
        return kind.object_kind or kind.kind, kind.api_version, uid

    def label_of(self, label: str, key: JobKey) -> str:
        """Return the value of a label of a job; "" without that label, for an unknown job, and for the label ""."""
        job_labels = (self.raw.get(key) or {}).get("metadata", {}).get("labels") if label else None
        value = job_labels.get(label) if isinstance(job_labels, Mapping) else None
        return value if isinstance(value, str) else ""

    def is_resized(self, key: JobKey) -> bool:
        """Return True if an autoscaler has resized a readable job."""
        return labels.WROTE_WORKERS in (self.raw[key]["metadata"].get("annotations") or {})


# Annotations of which this leader trusts only the values that it has written.
OUR_ANNOTATIONS = (labels.RESIZED_AT, labels.GAINED, labels.SIZED_AT_START, labels.TERM)
MAX_CLOCK_LEAD_S = 60.0  # the most that the previous leader's clock may be ahead of ours
STARTS_S = 60.0  # longest time from the first worker of a job to a change that counts as made at its start


def plausible_budget(past: ResizeBudget, created: str, began_s: float, now_s: float) -> ResizeBudget:
    """Return the record of the last resize without impossible values: the job's owner may have written it.

    A resize in the future counts as none, and a job cannot have won more time than its age at the resize. A resize
    counts as made at the start only if the first worker started at that time. past: the record in the annotations; it
    is returned itself if it is plausible. created: creation of the job, RFC 3339. began_s: start of its first worker, 0
    for none. now_s: seconds since 1970, as all times.
    """
    if not past.resized_s or past.resized_s > now_s + MAX_CLOCK_LEAD_S:
        return ResizeBudget(restart_s=past.restart_s)
    max_gained_s = max(0.0, past.resized_s - (unix_s(created) or 0.0))
    at_start = past.at_start and began_s - MAX_CLOCK_LEAD_S <= past.resized_s <= began_s + STARTS_S
    if at_start == past.at_start and past.gained_s <= max_gained_s:
        return past
    return replace(past, gained_s=min(past.gained_s, max_gained_s), at_start=at_start)


class JobReader:
    """A reader of objects of all kinds.

    kinds: by name. jobs: those that were read. read_again: reads a job again, with the terms that count now.
    resized_by: returns the name of the HorizontalPodAutoscaler of a job, "" for none. faults: why a job cannot be read,
    by job. unknown: names of annotations with our prefix that nobody reads, by job.
    """

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        jobs: JobTable,
        read_again: Callable[[JobKey], None],
        resized_by: Callable[[JobKey], str],
    ) -> None:
        """Start without jobs. The class docstring explains the arguments."""
        self._kinds, self._jobs, self._read_again, self._resized_by = kinds, jobs, read_again, resized_by
        self._terms: dict[str, Terms] = {}  # by the job's uid
        # By the job's uid: OUR_ANNOTATIONS as this leader has written them.
        self._written_annotations: dict[str, dict[str, str]] = {}
        self.faults: dict[JobKey, str] = {}
        self.unknown: dict[JobKey, tuple[str, ...]] = {}

    def read(self, key: JobKey, uid: str, raw: Object) -> tuple[Job, Object] | None:
        """Return the job, and its object with the annotations that count; None for an unreadable job. raw: its object.

        An unreadable job is left alone, unless workers are lent to it: then its last readable annotations count, so
        that it gives workers back and does not grow; None if its spec cannot be read either. `faults` and `unknown`
        change.
        """
        if names := unknown_names(raw["metadata"].get("annotations") or {}):
            self.unknown[key] = names
        else:
            self.unknown.pop(key, None)
        raw = _with_annotations(raw, self._written_annotations.get(uid, {}))
        try:
            job = self._on_lending_terms(self._refuse_if_hpa_resizes(key, self._kinds[key.kind].read(raw)), raw)
        except Exception as error:
            self.note_fault(key, error)
            return self._as_last_read(key, uid, raw)
        self.faults.pop(key, None)
        return job, raw

    def note_fault(self, key: JobKey, error: Exception) -> None:
        """Store in `faults` why a job cannot be read. error: raised by its kind, or any other exception."""
        self.faults[key] = str(error) if isinstance(error, BadJob) else f"it cannot be read: {error!r}"

    def store_written_annotations(self, key: JobKey, annotations: Mapping[str, str]) -> None:
        """Store the OUR_ANNOTATIONS that we have written on a job; the other `annotations` are ignored.

        From now on `read` uses these values in place of those in the object, which may be older, and whatever its owner
        writes. An unknown job is ignored.
        """
        if uid := self._jobs.uid(key):
            ours = {each: annotations[each] for each in OUR_ANNOTATIONS if each in annotations}
            self._written_annotations[uid] = ours

    def lent_terms(self, growing: Collection[JobKey]) -> dict[str, Terms]:
        """Return uid -> the terms to keep in the leader memory: of jobs above the min of their terms, and of growing
        jobs.

        The terms contain only the annotations that `trimmed_terms` keeps. A job without stored terms is absent.
        growing: jobs that are about to grow.
        """
        growing_uids = {self._jobs.uid(key) for key in growing}
        return {
            uid: trimmed_terms(terms)
            for uid, job in self._jobs.by_uid.items()
            if (terms := self._terms.get(uid)) is not None and (job.replicas > terms.minimum or uid in growing_uids)
        }

    def restore_terms(self, terms: Mapping[str, Terms]) -> None:
        """Store the terms of jobs that the previous leader knew, by uid, and read these jobs again. Ignores unknown
        uids.
        """
        for uid in terms.keys() & self._jobs.keys.keys():
            self._terms[uid] = terms[uid]
            self._read_again(self._jobs.keys[uid])

    def forget_written(self) -> None:
        """Forget what this replica has written, since another leader may have written after that."""
        self._written_annotations.clear()

    def forget(self, uid: str, key: JobKey | None) -> None:
        """Forget what is known of a deleted job. key: None if no job of this uid was ever stored. An unknown uid is
        ignored.
        """
        self._written_annotations.pop(uid, None)
        self._terms.pop(uid, None)
        if key is not None:
            self.faults.pop(key, None)
            self.unknown.pop(key, None)

    def _refuse_if_hpa_resizes(self, key: JobKey, job: Job) -> Job:
        """Return the job; with the reason in `refused` if a HorizontalPodAutoscaler resizes it.

        A job that is refused already keeps its own reason.
        """
        name = "" if job.refused else self._resized_by(key)
        why = f"the HorizontalPodAutoscaler {name} resizes it, and only one program may change its size"
        return replace(job, refused=why) if name else job

    def _on_lending_terms(self, job: Job, raw: Object) -> Job:
        """Return the job with the terms that count: of its object, or those on which its workers were lent.

        The latter count while it has more workers than the min of these terms. raw: its object. Stores the terms for
        the next call.
        """
        known = self._terms.get(job.uid)
        annotations = raw["metadata"].get("annotations") or {}
        if known is None or job.replicas <= known.minimum:
            self._terms[job.uid] = Terms(job.bounds.minimum, job.sizes, annotations, not job.refused)
            return job
        if job.refused and known.resizable:  # its workers can be taken, and it gets no more
            job = replace(job, refused="", bounds=Bounds(job.bounds.minimum, max(job.bounds.minimum, job.replicas)))
        if job.bounds.minimum <= known.minimum:
            self._terms[job.uid] = Terms(job.bounds.minimum, job.sizes, annotations, known.resizable)
            return job
        self._terms[job.uid] = replace(known, annotations=annotations)
        return replace(job, bounds=Bounds(known.minimum, job.bounds.maximum), sizes=known.sizes)

    def _as_last_read(self, key: JobKey, uid: str, raw: Object) -> tuple[Job, Object] | None:
        """Return (job, object) of an unreadable job with lent workers: its present spec with the annotations that were
        last readable.

        Its max is its present size, so that it can only shrink. None if it was never readable, if it has no workers
        above its min, or if its spec is the unreadable part. uid, raw: of the job.
        """
        if (known := self._terms.get(uid)) is None:
            return None
        annotations = {name: text for name, text in known.annotations.items() if _is_read(name)}
        readable = _with_annotations(raw, annotations, drop_others=True)
        try:
            job = self._on_lending_terms(
                self._refuse_if_hpa_resizes(key, self._kinds[key.kind].read(readable)), readable
            )
        except Exception:  # the spec is at fault, too
            return None
        max_workers = max(job.bounds.minimum, min(job.replicas, job.bounds.maximum))
        lent = job.replicas > job.bounds.minimum
        return (replace(job, bounds=Bounds(job.bounds.minimum, max_workers)), readable) if lent else None


def _with_annotations(raw: Object, annotations: Mapping[str, str], drop_others: bool = False) -> Object:
    """Return a copy of the job's object with these annotations added; `raw` itself if nothing changes.

    drop_others: True to remove all others that decisions read.
    """
    meta = raw["metadata"]
    before = meta.get("annotations") or {}
    merged = {**{name: text for name, text in before.items() if not (drop_others and _is_read(name))}, **annotations}
    return raw if merged == before else {**raw, "metadata": {**meta, "annotations": merged}}


def _is_read(name: str) -> bool:
    """Return True if decisions read an annotation of this name."""
    return name.startswith(f"{labels.PREFIX}/") or name == labels.VOLCANO_COOLDOWN


class OtherAutoscalers:
    """The HorizontalPodAutoscalers and the jobs that they resize, since two programs must not write one size.

    A HorizontalPodAutoscaler counts only for a job of its own namespace, as its scale reference does. kinds: by name.
    changed: called with each job that gets or loses a HorizontalPodAutoscaler.
    """

    def __init__(self, kinds: Mapping[str, JobKind], changed: Callable[[JobKey], None]) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._kinds = {(_group(kind.api_version), kind.object_kind or kind.kind): kind.kind for kind in kinds.values()}
        self._changed = changed
        self._targets: dict[tuple[str, str], JobKey] = {}  # namespace and name of an autoscaler -> its job
        self._names: dict[JobKey, set[str]] = {}  # names of the autoscalers of each job

    def put(self, namespace: str, name: str, api_version: str, kind: str, job: str) -> None:
        """Store a HorizontalPodAutoscaler, and call `changed` for each job that gets or loses one.

        api_version, kind, job: of its scale reference. A reference to no known kind counts as none.
        """
        kind_name = self._kinds.get((_group(api_version), kind))
        target = None if kind_name is None else JobKey(kind_name, namespace, job)
        if self._targets.get((namespace, name)) == target:
            return
        self.drop(namespace, name)
        if target is not None:
            self._targets[namespace, name] = target
            self._names.setdefault(target, set()).add(name)
            self._changed(target)

    def drop(self, namespace: str, name: str) -> None:
        """Drop a deleted HorizontalPodAutoscaler, and call `changed` for its job. Does nothing for an unknown one."""
        if (target := self._targets.pop((namespace, name), None)) is not None:
            self._names[target].discard(name)
            if not self._names[target]:
                del self._names[target]
            self._changed(target)

    def of(self, key: JobKey) -> str:
        """Return the name of the HorizontalPodAutoscaler that resizes a job; "" for none.

        If several do, the first by name.
        """
        return min(self._names.get(key, ()), default="")


def _group(api_version: str) -> str:
    """Return the API group of an apiVersion, "" for the core group."""
    return api_version.partition("/")[0] if "/" in api_version else ""
