"""Keep the jobs of all kinds by uid and by name, with their objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.autoscaler.observe.packed import Packed
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import Job, JobKey
from turnout.kube import labels

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
        """Store the object of a job that cannot be read. Drop its readable version before."""
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
