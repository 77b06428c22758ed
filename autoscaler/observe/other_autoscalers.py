"""Knows which jobs a HorizontalPodAutoscaler resizes, whoever made it: two hands on one size would fight.

It speaks for jobs of its own namespace only, as its scale reference does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from turnout.jobs.model import JobKey, JobKind


class OtherAutoscalers:
    """Follows HorizontalPodAutoscalers. kinds: by name. changed: called with a job that got or lost one."""

    def __init__(self, kinds: Mapping[str, JobKind], changed: Callable[[JobKey], None]) -> None:
        self._kinds = {(_group(kind.api_version), kind.object_kind or kind.kind): kind.kind for kind in kinds.values()}
        self._changed = changed
        self._targets: dict[tuple[str, str], JobKey] = {}  # namespace and name of an autoscaler -> its job
        self._names: dict[JobKey, set[str]] = {}

    def put(self, namespace: str, name: str, api_version: str, kind: str, job: str) -> None:
        """Note what one scales. api_version, kind, job: of its scale reference."""
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
        """Note that one is gone."""
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
