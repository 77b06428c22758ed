"""The verb `turnout history JOB`: what was decided on a job."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_job, add_verb, job_of
from turnout.cli.verb_support.listing_output import add_output, show
from turnout.cli.verb_support.run_verb import print_now, run_verb

if TYPE_CHECKING:
    from turnout.cli.job_names import JobName
    from turnout.cli.views.history import HistoryRow
    from turnout.cli.views.listing import Listing
    from turnout.jobs.model import JobKey
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("history bert -n team-a", "the Events of the last hour and the last change"),
    ("history VolcanoJob/team-a/bert -w", "go on, and print what is decided from now on"),
    ("history bert --decision-log decisions", "with what Events forget"),
)


def add(commands: Verbs) -> None:
    """Add the verb `history` to the command line."""
    history = add_verb(commands, "history", "what was decided for a job, oldest first, and by whom", _EXAMPLES)
    add_job(history)
    history.add_argument("--decision-log", type=Path, metavar="FILE", help="the autoscaler's, for what Events forget")
    add_output(history)
    add_cluster(history)
    history.set_defaults(run=_history)


def _history(args: argparse.Namespace) -> int:
    """Print the decisions on one job. Return the exit code: FAILED without such a job or a readable log."""
    from turnout.cli.why import NoSuchJob, known_words
    from turnout.kube.client.clock import RealClock

    name = job_of(args, known_words())

    async def work(client: Client) -> None:
        """Print the history of a job, repeatedly with --watch."""

        async def look() -> Listing[Any]:
            return await history_of(client, name, args.decision_log)

        await show(args, look, print_now, RealClock())

    return run_verb("history", args, work, NoSuchJob, OSError)


async def history_of(client: Client, job_name: JobName, log: Path | None) -> Listing[Any]:
    """Return the decisions on one job, oldest first, also on a deleted one of which Events remain.

    A note tells that the job is deleted, and how many lines of the log cannot be read. log: decision log, whose rotated
    file is read, too; None to read only Events and annotations. Raises NoSuchJob if there is no such job, or several,
    and OSError if the log cannot be read.
    """
    import asyncio

    from turnout.cli.verb_support.listing import items
    from turnout.cli.views.history import in_order, listing, rows_of_annotations, rows_of_events
    from turnout.cli.why import resolve_job
    from turnout.jobs.kinds.registry import KINDS

    namespace_path = f"namespaces/{quote(job_name.namespace, safe='')}"
    jobs = await _jobs_with_name(client, namespace_path, job_name)
    events, pods = await asyncio.gather(
        items(client, f"/api/v1/{namespace_path}/events", {}), items(client, f"/api/v1/{namespace_path}/pods", {})
    )
    key = resolve_job(job_name, jobs or _objects_in_events(events, job_name.namespace))
    kind = (KINDS[key.kind].object_kind or key.kind) if key.kind in KINDS else key.kind
    event_rows = rows_of_events(events, frozenset(_pods_of(pods, kind, key.name)), kind, key.name)
    event_rows += rows_of_annotations(jobs[key], kind) if key in jobs else []
    notes = [] if key in jobs or key.kind not in KINDS else [f"{key} is deleted; the list has the Events that remain"]
    if log is not None:
        more, unread = await asyncio.to_thread(_read, log, key)
        event_rows += more
        notes += [f"{unread} lines of {log} cannot be read"] if unread else []
    return listing(in_order(event_rows), notes)


async def _jobs_with_name(client: Client, namespace_path: str, job_name: JobName) -> dict[JobKey, Any]:
    """Return the existing jobs that a name may mean, each with its object as JSON values.

    They are of the name's kind in all API groups that have it, or of all kinds if the name has none. Kinds that may not
    be listed or are not served are left out. namespace_path: "namespaces/NAME", the namespace of `job_name`.
    """
    import asyncio

    from turnout.cli.verb_support.listing import items
    from turnout.jobs.kinds.registry import KINDS
    from turnout.jobs.model import JobKey

    name, group = job_name.name.rpartition("/")[2], job_name.kind.partition(".")[0]
    selector = {"fieldSelector": f"metadata.name={name}"}
    kinds = [kind for kind in KINDS if not group or kind.partition(".")[0] == group]
    lists = await asyncio.gather(
        *(items(client, _in_namespace(namespace_path, KINDS[kind].path), selector) for kind in kinds)
    )
    found = zip(kinds, lists, strict=True)
    return {JobKey(kind, job_name.namespace, name): objects[0] for kind, objects in found if objects}


def _in_namespace(namespace_path: str, path: str) -> str:
    """Return the path of a kind's collection in one namespace, as in /api/v1/pods -> /api/v1/namespaces/NAME/pods.

    namespace_path: "namespaces/NAME". path: of the collection in the whole cluster.
    """
    group, _, plural = path.rpartition("/")
    return f"{group}/{namespace_path}/{plural}"


def _objects_in_events(events: list[Any], namespace: str) -> set[JobKey]:
    """Return the jobs, PodGroups and pods that Events name, also those that no longer exist.

    Objects of other kinds are left out. events: as JSON values. namespace: of all of them.
    """
    from turnout.cli.views.cluster_events import read_event
    from turnout.jobs.kinds.registry import KINDS
    from turnout.jobs.model import JobKey

    kinds = {(kind.object_kind or kind.kind, kind.api_version): kind.kind for kind in KINDS.values()}
    found = set()
    for event in map(read_event, events):
        kind = kinds.get((event.kind, event.api_version))
        if kind is None and event.kind in ("Pod", "PodGroup"):
            kind = event.kind
        if kind is not None:
            found.add(JobKey(kind, namespace, event.name))
    return found


def _pods_of(pods: list[Any], kind: str, name: str) -> Iterator[str]:
    """Yield the names of the pods that this object owns, and of pods without owner whose gang has its name.

    kind: of the owner, as in owner references.
    """
    import msgspec

    from turnout.jobs.gang import membership
    from turnout.kube.objects import Pod

    for raw in pods:
        owners = raw["metadata"].get("ownerReferences") or ()
        owned = any((each.get("kind"), each.get("name")) == (kind, name) for each in owners)
        if owned or (not owners and membership(msgspec.convert(raw, Pod, strict=False)).key.name == name):
            yield raw["metadata"]["name"]


def _read(log: Path, key: JobKey) -> tuple[list[HistoryRow], int]:
    """Return a job's changed decisions in a decision log and its rotated file, and the number of unreadable lines.

    Raises OSError if one of them cannot be opened or read. The rotated file may be missing.
    """
    from turnout.cli.views.history import rows_of_log

    previous = log.with_name(log.name + ".1")
    with ExitStack() as files:
        paths = [previous, log] if previous.exists() else [log]
        lines = [files.enter_context(path.open("rb")) for path in paths]
        return rows_of_log(chain.from_iterable(lines), key)
