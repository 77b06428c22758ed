"""`turnout pause` and `turnout resume` as the patches that they write: of one job, or of all at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from turnout.autoscaler.model import UNTIL_KEY, AdminOverride, admin_override_data
from turnout.jobs.annotations import duration_s
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, JobKey
from turnout.kube import labels
from turnout.kube.times import rfc3339, unix_s


class BadOptions(ValueError):
    """The end of a pause is invalid or in the past. The caller prints the message and ends with code 2."""


@dataclass(frozen=True, slots=True)
class PendingPatch:
    """A merge patch that is not sent yet."""

    path: str  # of the object
    body: dict[str, Any]
    message: str  # printed for the user after the patch is written


def pause_end(moment: str | None, duration: str | None, now_s: float) -> str:
    """Return when a pause ends, as RFC 3339; "" for a pause without end.

    moment: RFC 3339 as typed, None if not given. duration: from now, as in 30m or 2h; None if not given, ignored with a
    moment. now_s: since 1970. Raises BadOptions if the one that counts is invalid, or the end is not in the future.
    """
    if moment is not None:
        at_s = unix_s(moment) if re.match(r"\d{4}-\d{2}-\d{2}T.*(?:Z|[+-]\d{2}:\d{2})$", moment) else None
        if at_s is None:
            raise BadOptions(f"--until {moment!r} must be a time such as 2026-01-31T18:00:00Z")
        if at_s <= now_s:
            raise BadOptions(f"--until {moment} is in the past")
        return rfc3339(at_s)
    if duration is None:
        return ""
    try:
        left_s = duration_s({"--for": duration}, "--for") or 0.0
    except BadJob:
        left_s = 0.0
    if left_s <= 0:
        raise BadOptions(f"--for {duration!r} must be a duration such as 30m or 2h")
    return rfc3339(now_s + left_s)


def path_of(key: JobKey) -> str:
    """Return the API path of a job's object. key: of a kind in KINDS."""
    base, _, plural = KINDS[key.kind].path.rpartition("/")
    return f"{base}/namespaces/{key.namespace}/{plural}/{key.name}"


def pause_patch(key: JobKey, paused: Literal["true", "grow", "shrink"] | None, ends: str = "") -> PendingPatch:
    """Return the patch that pauses one job, or resumes it if `paused` is None. The patch is not sent.

    key: of the job. paused: what stops: "grow", "shrink", or "true" (a text) for both. ends: RFC 3339; "" for no end,
    and to resume.
    """
    annotations = {labels.PAUSED: paused, labels.PAUSED_UNTIL: ends or None}
    what = {"true": "keeps its size", "grow": "grows no more", "shrink": "gives nothing back"}.get(paused or "", "")
    message = (
        f"{key} {what}{f' until {ends}' if ends else ''}" if paused else f"{key} is resized by the autoscaler again"
    )
    return PendingPatch(path_of(key), {"metadata": {"annotations": annotations}}, message)


def override_patch(configmap: str, override: AdminOverride, ends: str = "") -> PendingPatch:
    """Return the patch that sets an override for all jobs at once. The patch is not sent.

    configmap: NAMESPACE/NAME, the value of the autoscaler's --orders. ends: RFC 3339, "" for no end.
    """
    namespace, _, name = configmap.partition("/")
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "turnout"}},
        "data": {**admin_override_data(override), UNTIL_KEY: ends or None},
    }
    message = {
        AdminOverride.RUN: "the autoscaler resizes jobs again",
        AdminOverride.PAUSE: "every job keeps its size",
        AdminOverride.RELEASE: "every elastic job goes back to its min, and keeps that size",
    }[override]
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    return PendingPatch(path, body, f"{message}{f' until {ends}' if ends else ''}")
