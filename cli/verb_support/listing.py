"""Lists once what a command needs, as far as the user's rights allow: the whole cluster, else one namespace."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from turnout.cli.job_names import JOB_KINDS

if TYPE_CHECKING:
    from turnout.cli.controller_status import ControllerReport, JobEvent, JobPod
    from turnout.controllers.model import ControlledKind
    from turnout.jobs.model import JobKey
    from turnout.kube.errors import CallError

VIEWER = "turnout-viewer"  # the ClusterRole of deploy/manifests that allows all of it
_EMPTY = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
_OF_THE_CLUSTER = {"nodes", "priorityclasses", "queues", "clusterqueues", "cohorts"}  # of no namespace


class CannotSee(Exception):
    """A required list cannot be read. The message names the cause and the remedy."""


class Lists(Protocol):
    """The calls that a listing needs of a Client."""

    def pages(self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500) -> AsyncIterator[bytes]:
        """Yield each page of a list. path: of the collection. params: of its query. limit: objects per page."""


class ListOnce:
    """Lists as a client does, and never watches. faults: lists that failed for a reason other than missing rights.

    unreadable_configmaps: paths of ConfigMaps that may not be listed. forbidden_paths: all other paths that may not be
    listed in the whole cluster; `namespace` is listed instead if that is permitted. last: a path that is fetched at
    once, but yielded only when the event `others_listed` is set: pods are cheaper to read once their jobs are known.
    """

    def __init__(self, client: Lists, namespace: str, last: str = "") -> None:
        """Begin without any list. namespace, last: as described for the class; "" for no last path."""
        import asyncio

        self._client, self._namespace, self._last = client, namespace, last
        self.others_listed = asyncio.Event()
        self.faults: dict[str, CallError] = {}
        self.unreadable_configmaps: list[str] = []
        self.forbidden_paths: list[str] = []

    async def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500
    ) -> AsyncIterator[bytes]:
        """Yield each page of a list. If it is forbidden, yield the pages of one namespace, or one empty page.

        path: of the collection in the whole cluster. params: of the request, such as selectors. limit: objects per
        page. Raises CallError, also recorded in `faults`, if the list fails for another reason. Nothing is recorded for
        NotFound and Gone, or if only the list of one namespace fails.
        """
        if path != self._last:
            async for page in self._allowed(path, params, limit):
                yield page
            return
        pages = [page async for page in self._allowed(path, params, limit)]
        await self.others_listed.wait()
        for page in pages:
            yield page

    async def _allowed(self, path: str, params: Mapping[str, Any] | None, limit: int) -> AsyncIterator[bytes]:
        """Yield the pages of a list.

        If it is forbidden, those of one namespace, and record the path in `forbidden_paths` or `unreadable_configmaps`.
        Raises CallError, which is recorded in `faults` unless it is NotFound or Gone, or comes from the list of one
        namespace. For the arguments see `pages`.
        """
        from turnout.kube.errors import CallError, Forbidden, Gone, NotFound

        try:
            async for page in self._client.pages(path, params, limit=limit):
                yield page
        except (NotFound, Gone):
            raise  # an optional kind that is not served; a list that outlived its version is listed again
        except Forbidden:
            if path.endswith("/configmaps"):
                self.unreadable_configmaps.append(path)
            else:
                self.forbidden_paths.append(path)
            async for page in self._narrower(path, params, limit):
                yield page
        except CallError as error:
            self.faults[path] = error
            raise

    async def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Wait until cancelled: yields nothing, since a command lists only once. The arguments are ignored."""
        import asyncio

        await asyncio.Event().wait()
        yield b""

    def check(self) -> None:
        """Raise CannotSee if a list failed for a reason other than missing rights."""
        if not self.faults:
            return
        path, error = next(iter(sorted(self.faults.items())))
        if error.status:
            raise CannotSee(str(error))
        raise CannotSee(f"the API server cannot be reached: {error.__cause__ or error.message or path}")

    def missing(self) -> tuple[str, ...]:
        """Return what may not be listed in the whole cluster, as kubectl auth can-i takes it."""
        return tuple(resource(path) for path in sorted(self.forbidden_paths))

    async def _narrower(self, path: str, params: Mapping[str, Any] | None, limit: int) -> AsyncIterator[bytes]:
        """Yield the pages of the same list in `namespace` only. One empty page if that is forbidden, too, if the kind
        has no namespace, or if `path` is of one namespace already.

        For the arguments see `pages`. Raises CallError if the list fails for another reason.
        """
        from turnout.kube.errors import Forbidden

        plural = path.rpartition("/")[2]
        if plural in _OF_THE_CLUSTER or "/namespaces/" in path:
            yield _EMPTY
            return
        own = f"{path.removesuffix(plural)}namespaces/{self._namespace}/{plural}"
        try:
            async for page in self._client.pages(own, params, limit=limit):
                yield page
        except Forbidden:
            yield _EMPTY


def may_not(missing: Iterable[str]) -> str:
    """Return a sentence that names the resources that may not be listed and the ClusterRole that permits it.

    missing: resources as `ListOnce.missing` returns them, at least one.
    """
    return (
        f"you may not list {', '.join(missing)} in the whole cluster, and the autoscaler decides on all of it; the "
        f"ClusterRole {VIEWER} has these rights"
    )


def resource(path: str) -> str:
    """Return the resource of a collection's path as kubectl auth can-i takes it: nodes, or jobs.batch.volcano.sh.

    path: for the whole cluster or of a namespace.
    """
    _, base, *rest = path.split("/")
    return rest[-1] if base == "api" else f"{rest[-1]}.{rest[0]}"


async def controller_report_of(client: Lists, key: JobKey) -> ControllerReport | None:
    """Return what a job's controller reports about it. key: of the job, as the autoscaler names it.

    None for a kind that the job controllers do not manage, and for a job that does not exist or may not be read.
    """
    from turnout.jobs.kinds.registry import KINDS

    name = (KINDS[key.kind].object_kind or key.kind) if key.kind in KINDS else ""
    if name not in JOB_KINDS:
        return None
    from turnout.cli.controller_status import JobChildren, report_of_controller
    from turnout.controllers.children import POD_GROUPS
    from turnout.controllers.kinds.registry import KINDS as CONTROLLED

    kind = CONTROLLED[name]
    api, place = KINDS[key.kind].api_version, f"namespaces/{quote(key.namespace, safe='')}"
    raw = await _object_by_name(client, f"/apis/{api}/{place}/{kind.plural}", key.name)
    if raw is None:
        return None
    groups = [
        await _object_by_name(client, f"/apis/{group}/{place}/podgroups", key.name) for group in POD_GROUPS.values()
    ]
    phases = [str((each.get("status") or {}).get("phase") or "") for each in groups if each is not None]
    pods = await _pods(client, f"/api/v1/{place}/pods", kind, raw)
    events = await _job_events(client, f"/api/v1/{place}/events", kind, raw)
    observed = JobChildren(pods, phases[0] if phases else None, events)
    typed = {"apiVersion": api, "kind": kind.kind, **raw}
    return report_of_controller(kind, typed, f"{kind.kind}/{key.namespace}/{key.name}", observed, time.time())


async def _object_by_name(client: Lists, path: str, name: str) -> Any:
    """Return the object with this name; None if there is none, it may not be listed, or its kind is not served.

    It is read by a list, because a viewer may list objects but not get one. path: of the list.
    """
    found = await items(client, path, {"fieldSelector": f"metadata.name={name}"})
    return next((each for each in found if each["metadata"].get("name") == name), None)


async def items(client: Lists, path: str, params: Mapping[str, Any]) -> list[Any]:
    """Return the items of all pages of a list as JSON values; [] if it may not be listed or is not served.

    path: of the collection. params: of the query. Raises CallError if the list fails for another reason.
    """
    from turnout.kube.errors import Forbidden, NotFound
    from turnout.kube.status import decode_json_object

    found: list[Any] = []
    try:
        async for page in client.pages(path, params):
            found += decode_json_object(path, page).get("items") or []
    except (Forbidden, NotFound):
        return []
    return found


async def _pods(client: Lists, path: str, kind: ControlledKind, raw: Any) -> tuple[JobPod, ...]:
    """Return the pods that the job `raw` controls and that are not being deleted. path: of its namespace's pods.

    kind: of the job. raw: its object, as JSON values.
    """
    words, meta = kind.children.label_keys, raw["metadata"]
    found = await items(client, path, {"labelSelector": f"{words.job}={meta['name']}"})
    owned = (
        each
        for each in found
        if any(
            owner.get("uid") == meta["uid"] and owner.get("controller")
            for owner in each["metadata"].get("ownerReferences") or ()
        )
    )
    return tuple(_pod(each, words.role, words.index) for each in owned if "deletionTimestamp" not in each["metadata"])


def _pod(raw: Any, role: str, index: str) -> JobPod:
    """Return a pod of a job; its index is 0 if the label has no number below 10 million.

    raw: its object. role, index: keys of the labels that contain its role and its index in the role.
    """
    from turnout.cli.controller_status import JobPod

    labels, status = raw["metadata"].get("labels") or {}, raw.get("status") or {}
    index_text = str(labels.get(index, ""))
    scheduler_message = (
        str(each.get("message") or "")
        for each in status.get("conditions") or ()
        if each.get("type") == "PodScheduled" and each.get("status") == "False"
    )
    number = int(index_text) if index_text.isascii() and index_text.isdigit() and len(index_text) < 8 else 0
    return JobPod(str(labels.get(role, "")), number, str(status.get("phase") or "Pending"), next(scheduler_message, ""))


async def _job_events(client: Lists, path: str, kind: ControlledKind, raw: Any) -> tuple[JobEvent, ...]:
    """Return the Events about the object `raw`, compared by UID: not those of an earlier object with its name.

    path: of the Events of its namespace. kind: of the object.
    """
    from turnout.cli.controller_status import JobEvent
    from turnout.cli.views.cluster_events import read_event

    meta = raw["metadata"]
    selector = f"involvedObject.name={meta['name']},involvedObject.kind={kind.kind}"
    events = map(read_event, await items(client, path, {"fieldSelector": selector}))
    return tuple(
        JobEvent(event.reason, event.message, event.last_s or 0.0) for event in events if event.uid == meta["uid"]
    )
