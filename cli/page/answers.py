"""The answers of the page, made from the state of the cluster: filtered, sorted and divided into pages."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from turnout.cli.page.cluster_state import ClusterState, HostState, PlacedPod
from turnout.cli.page.messages import (
    FREE_CELL,
    HIDDEN_CELL,
    PART_ELASTIC,
    PART_MIN,
    PART_OTHER,
    STATES,
    DecisionList,
    FabricTree,
    GpuCells,
    HostRow,
    JobItem,
    JobList,
    JobRef,
    JobTime,
    LargestGang,
    LargestGangs,
    NodeItem,
    NodeList,
    QueueList,
    RankRow,
    RingCost,
    RoundItem,
    SaveItem,
    Summary,
    SwitchRow,
    TimeItem,
)
from turnout.cli.views.goodput import Totals, period, rows
from turnout.cli.views.saves import LoggedSave
from turnout.launcher.goodput.job_time import TimeKind
from turnout.topology.fabric import ring_cost
from turnout.topology.switch_paths import natural_key, tiers_of_switches

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
MAX_RANKS = 1_024
MAX_ROUNDS = MAX_SAVES = 50
MAX_TEXT = 253  # characters of one filter: the longest name in Kubernetes
T = TypeVar("T")


class BadQuery(ValueError):
    """A parameter of the request is invalid. The message is sent to the user."""


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of one request for a list."""

    # By name: the value that the column must have; "text": a part of the list's text columns.
    filters: Mapping[str, str]
    limit: int = DEFAULT_LIMIT  # rows, 1 to MAX_LIMIT
    offset: int = 0  # rows before the page
    sort: str = ""  # a sort key of the list, with "-" before it for descending; "" for the list's own order


def read_query(parameters: Mapping[str, str], known: Iterable[str]) -> Query:
    """Return the parameters of a request for a list. known: names of its filters.

    The sort key is not checked here. Raises BadQuery for any other filter, for one longer than MAX_TEXT characters,
    and for an invalid `limit` or `continue`.
    """
    names = frozenset(known)
    filters = {}
    for name, text in parameters.items():
        if name in ("limit", "continue", "sort"):
            continue
        if name not in names:
            raise BadQuery(f"there is no filter {name[:40]!r}; the filters are {', '.join(sorted(names))}")
        if len(text) > MAX_TEXT:
            raise BadQuery(f"the filter {name} is longer than {MAX_TEXT} characters")
        filters[name] = text
    limit = _number(parameters.get("limit", str(DEFAULT_LIMIT)), "limit", 1, MAX_LIMIT)
    offset = _number(parameters.get("continue") or "0", "continue", 0, 10_000_000)
    return Query(filters, limit, offset, parameters.get("sort", "")[:40])


def _number(text: str, name: str, minimum: int, maximum: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not minimum <= int(text) <= maximum:
        raise BadQuery(f"{name} is a number from {minimum} to {maximum}, not {text[:20]!r}")
    return int(text)


def page_of(
    rows: Sequence[T], query: Query, fields: Mapping[str, Callable[[T], object]]
) -> tuple[Sequence[T], int, str]:
    """Return one page of the rows, the number of all rows, and the `continue` value of the next page ("" at the end).

    Without a sort key in the query the rows keep their order. fields: name of a sort key -> function that returns its
    value. Raises BadQuery for a sort key that is not in `fields`.
    """
    if query.sort:
        name = query.sort.removeprefix("-")
        if name not in fields:
            raise BadQuery(f"there is no column {name!r} to sort by; columns are {', '.join(sorted(fields))}")
        key = fields[name]
        rows = sorted(rows, key=lambda row: _sort_key(key(row)), reverse=query.sort.startswith("-"))
    end = query.offset + query.limit
    return rows[query.offset : end], len(rows), str(end) if end < len(rows) else ""


def _sort_key(value: object) -> tuple[int, object]:
    """Return a key that orders numbers before texts, and texts before None."""
    if value is None:
        return 2, 0
    return (1, natural_key(value)) if isinstance(value, str) else (0, value)


def summary(state: ClusterState) -> Summary:
    """Return the numbers of the cluster as a whole: GPUs, nodes, jobs and queues."""
    used = _used_by_node(state.pods)
    open_hosts = [each for each in state.hosts if each.state == "ready"]
    free = {each.node: max(0, each.gpus - used[each.node]) for each in open_hosts}
    return Summary(
        observed_at_s=state.observed_at_s,
        version=state.version,
        gpus=sum(each.gpus for each in state.hosts),
        used_gpus=sum(pod.gpus for pod in state.pods),
        elastic_gpus=sum(pod.gpus for pod in state.pods if pod.elastic),
        lent_gpus=sum(queue.lent_gpus or 0 for queue in state.queues),
        free_gpus=sum(free.values()),
        whole_free_nodes=sum(each.gpus > 0 and free[each.node] == each.gpus for each in open_hosts),
        faulty_nodes=sum(each.state == "faulty" for each in state.hosts),
        cordoned_nodes=sum(each.state == "cordoned" for each in state.hosts),
        unmapped_nodes=sum(not each.path for each in state.hosts),
        waiting_jobs=sum(job.state == "waiting" for job in state.jobs),
        waiting_gpus=sum(queue.waiting_gpus or 0 for queue in state.queues),
        running_jobs=sum(job.state == "running" for job in state.jobs),
        map_fault=state.map_fault,
    )


def _used_by_node(pods: Iterable[PlacedPod]) -> Counter[str]:
    """Return the GPUs that pods hold, by node."""
    used = Counter[str]()
    for pod in pods:
        used[pod.node] += pod.gpus
    return used


def fabric_tree(state: ClusterState) -> FabricTree:
    """Return the switches and the hosts under them. It depends only on the map and the nodes, not on pods."""
    paths = {each.node: each.path for each in state.hosts if each.path}
    tier_of = tiers_of_switches(paths.values())
    switches = {path[:depth] for path in paths.values() for depth in range(1, len(path) + 1)}
    ordered = sorted(switches, key=lambda path: [natural_key(name) for name in path])
    return FabricTree(
        observed_at_s=state.map_at_s,
        version=state.map_version,
        tiers=max((tier_of[path] for path in ordered), default=0),
        switches=tuple(SwitchRow("/".join(path), tier_of[path]) for path in ordered),
        hosts=tuple(HostRow(each.node, "/".join(each.path), each.gpus) for each in state.hosts),
        map_fault=state.map_fault,
    )


def gpu_cells(state: ClusterState, under: str = "") -> GpuCells:
    """Return which job uses each GPU. under: path of a switch, as in SPINE/LEAF, whose hosts alone are returned; ""
    for all.

    Raises BadQuery if the map has no host below that switch.
    """
    chosen = [at for at, each in enumerate(state.hosts) if _is_under(each, under)]
    if under and not chosen:
        raise BadQuery(f"the map has no switch {under[:MAX_TEXT]!r}")
    by_node: dict[str, list[PlacedPod]] = {}
    gpus = Counter[str]()
    for pod in state.pods:
        by_node.setdefault(pod.node, []).append(pod)
        gpus[pod.job] += pod.gpus
    refs: dict[str, tuple[int, JobRef]] = {}
    jobs, parts, states = list[int](), bytearray(), bytearray()
    for at in chosen:
        host = state.hosts[at]
        states.append(STATES.index(host.state))
        _append_cells(host, by_node.get(host.node, ()), refs, gpus, jobs, parts)
    return GpuCells(
        observed_at_s=state.observed_at_s,
        version=state.version,
        first_host=chosen[0] if chosen else 0,
        counts=tuple(state.hosts[at].gpus for at in chosen),
        state=base64.b64encode(states).decode(),
        jobs=tuple(ref for _, ref in refs.values()),
        job=base64.b64encode(np.array(jobs, "<u2").tobytes()).decode(),
        part=base64.b64encode(parts).decode(),
    )


def _is_under(host: HostState, switch: str) -> bool:
    path = "/".join(host.path)
    return not switch or path == switch or path.startswith(f"{switch}/")


def _append_cells(
    host: HostState,
    pods: Iterable[PlacedPod],
    refs: dict[str, tuple[int, JobRef]],
    gpus: Counter[str],
    jobs: list[int],
    parts: bytearray,
) -> None:
    """Append the cells of one host to `jobs` and `parts`. Pods with more GPUs than the host offers are cut.

    refs: job -> its number and reference, extended by new jobs. gpus: GPUs of each job in the whole cluster.
    """
    left = host.gpus
    for pod in pods:
        count = min(pod.gpus, left)
        left -= count
        cell = HIDDEN_CELL
        if pod.job:
            if pod.job not in refs:
                refs[pod.job] = len(refs), JobRef(pod.job, pod.queue, gpus[pod.job])
            cell = min(refs[pod.job][0], HIDDEN_CELL - 1)
        jobs.extend([cell] * count)
        parts.extend([PART_OTHER if pod.rank is None else PART_ELASTIC if pod.elastic else PART_MIN] * count)
    jobs.extend([FREE_CELL] * left)
    parts.extend(bytes(left))


def largest_gangs(state: ClusterState) -> LargestGangs:
    """Return, tier by tier, the switch under which nodes that are free as a whole have the most GPUs.

    Only ready nodes of the map count. A tier without such a node is left out.
    """
    used = _used_by_node(state.pods)
    free_hosts = [
        each for each in state.hosts if each.path and each.state == "ready" and each.gpus and not used[each.node]
    ]
    nodes, gpus = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for host in free_hosts:
        for depth in range(1, len(host.path) + 1):
            nodes[host.path[:depth]] += 1
            gpus[host.path[:depth]] += host.gpus
    tier_of = tiers_of_switches([each.path for each in state.hosts if each.path])
    best: dict[int, tuple[str, ...]] = {}
    for path in sorted(nodes, key=lambda each: (-gpus[each], each)):
        best.setdefault(tier_of[path], path)
    items = tuple(LargestGang(tier, "/".join(best[tier]), nodes[best[tier]], gpus[best[tier]]) for tier in sorted(best))
    return LargestGangs(observed_at_s=state.observed_at_s, version=state.version, items=items)


QUEUE_FILTERS = ("text",)


def queue_list(state: ClusterState, query: Query) -> QueueList:
    """Return the queues that match the filter "text", in the order of the state unless the query sorts, paged.

    The filter matches a part of the queue's name in any case. Sort keys: queue, quota_gpus, used_gpus, idle_gpus,
    waiting_gpus. Raises BadQuery for another.
    """
    text = query.filters.get("text", "").lower()
    rows = [each for each in state.queues if text in each.queue.lower()]
    fields = {
        "queue": lambda row: row.queue,
        "quota_gpus": lambda row: row.quota_gpus,
        "used_gpus": lambda row: row.used_gpus,
        "idle_gpus": lambda row: row.idle_gpus,
        "waiting_gpus": lambda row: row.waiting_gpus,
    }
    page, total, after = page_of(rows, query, fields)
    return QueueList(
        observed_at_s=state.observed_at_s,
        version=state.version,
        total=total,
        next=after,
        items=tuple(page),
        free_gpus=summary(state).free_gpus,
    )


JOB_FILTERS = ("text", "state", "queue", "namespace", "kind", "reason")


def job_list(state: ClusterState, query: Query) -> JobList:
    """Return the jobs that match all filters, in the order of the state unless the query sorts, paged.

    The filter "text" matches a part of KIND/NAMESPACE/NAME in any case; the others match a field exactly. Sort keys:
    job, queue, gpus, elastic_gpus, since_at_s, workers. Raises BadQuery for another.
    """
    text = query.filters.get("text", "").lower()
    exact = {name: value for name, value in query.filters.items() if name != "text"}
    rows = [
        job
        for job in state.jobs
        if text in job.job.lower() and all(getattr(job, name) == value for name, value in exact.items())
    ]
    fields: dict[str, Callable[[JobItem], object]] = {
        "job": lambda row: row.job,
        "queue": lambda row: row.queue,
        "gpus": lambda row: row.gpus,
        "elastic_gpus": lambda row: row.elastic_gpus,
        "since_at_s": lambda row: row.since_at_s,
        "workers": lambda row: row.workers,
    }
    page, total, after = page_of(rows, query, fields)
    return JobList(observed_at_s=state.observed_at_s, version=state.version, total=total, next=after, items=tuple(page))


DECISION_FILTERS = ("text", "glyph", "queue", "namespace", "component", "object", "reason")


def decision_list(state: ClusterState, query: Query) -> DecisionList:
    """Return the decisions that match all filters, the newest first unless the query sorts, paged.

    The filter "text" matches a part of object, reason or sentence in any case; the others match a field exactly. Raises
    BadQuery for another sort key than "at_s" or "-at_s".
    """
    text = query.filters.get("text", "").lower()
    exact = {name: value for name, value in query.filters.items() if name != "text"}
    rows = [
        each
        for each in state.decisions
        if text in f"{each.object} {each.reason} {each.sentence}".lower()
        and all(getattr(each, name) == value for name, value in exact.items())
    ]
    page, total, after = page_of(rows, query, {"at_s": lambda row: row.at_s})
    return DecisionList(
        observed_at_s=state.observed_at_s, version=state.version, total=total, next=after, items=tuple(page)
    )


NODE_FILTERS = ("text", "state")


def node_list(state: ClusterState, query: Query) -> NodeList:
    """Return the hosts of the state that match all filters, paged; by state in the order of STATES unless the query
    sorts.

    The filter "text" matches a part of the node's name in any case, "state" the whole state. The numbers of nodes by
    state are of all hosts, not only of the matching ones. Sort keys: node, state, gpus, used_gpus. Raises BadQuery for
    another.
    """
    text, state_filter = query.filters.get("text", "").lower(), query.filters.get("state")
    used = _used_by_node(state.pods)
    jobs: dict[str, dict[str, None]] = {}
    for pod in state.pods:
        if pod.job:
            jobs.setdefault(pod.node, {})[pod.job] = None
    rows = [
        NodeItem(
            each.node,
            each.state,
            each.evidence,
            "/".join(each.path),
            each.gpus,
            used[each.node],
            tuple(jobs.get(each.node, ()))[:16],
        )
        for each in state.hosts
        if text in each.node.lower() and state_filter in (None, each.state)
    ]
    rows.sort(key=lambda row: STATES.index(row.state))
    fields: dict[str, Callable[[NodeItem], object]] = {
        "node": lambda row: row.node,
        "state": lambda row: STATES.index(row.state),
        "gpus": lambda row: row.gpus,
        "used_gpus": lambda row: row.used_gpus,
    }
    page, total, after = page_of(rows, query, fields)
    return NodeList(
        observed_at_s=state.observed_at_s,
        version=state.version,
        total=total,
        next=after,
        items=tuple(page),
        states=dict(Counter(each.state for each in state.hosts)),
    )


def rank_rows(state: ClusterState, job: str) -> tuple[RankRow, ...]:
    """Return the first MAX_RANKS workers of a job that have a node, by rank. Pods that are no workers are left out.

    job: KIND/NAMESPACE/NAME.
    """
    pods = [pod for pod in state.pods if pod.job == job and pod.rank is not None]
    path_by_node = {each.node: each.path for each in state.hosts}
    host_by_node = {each.node: each.host for each in state.hosts}
    hosts = [host_by_node.get(pod.node) for pod in pods]
    rows = []
    for at, pod in enumerate(pods[:MAX_RANKS]):
        host, next_host = hosts[at], hosts[(at + 1) % len(hosts)]
        tier = None if host is None or next_host is None else state.fabric.tier_between(host, next_host)
        switch = "/".join(path_by_node.get(pod.node, ()))
        rows.append(RankRow(pod.rank or 0, pod.name, pod.node, switch, tier, pod.elastic))
    return tuple(rows)


def ring_of(state: ClusterState, job: str) -> RingCost | None:
    """Return what the ring of a job's workers crosses: edges and switches of each tier, and the fewest leaves possible.

    job: KIND/NAMESPACE/NAME. None if no worker of it has a node and a rank, so also for an unknown job, or if one of
    its nodes is not on the map.
    """
    by_node = {each.node: each.host for each in state.hosts}
    pods = [pod for pod in state.pods if pod.job == job and pod.rank is not None]
    hosts = [by_node.get(pod.node) for pod in pods]
    known = [host for host in hosts if host is not None]
    if not known or len(known) < len(hosts):
        return None
    found = ring_cost(state.fabric, known)
    return RingCost(found.crossings, found.switches, _fewest_leaves(state, sum(pod.gpus for pod in pods)))


def _fewest_leaves(state: ClusterState, gpus: int) -> int:
    """Return the smallest number of leaf switches that have `gpus` GPUs together, used or free.

    If all leaves together have fewer, the number of all leaves.
    """
    sizes = Counter[tuple[str, ...]]()
    for host in state.hosts:
        if host.path:
            sizes[host.path] += host.gpus
    count = 0
    for size in sorted(sizes.values(), reverse=True):
        if gpus <= 0:
            break
        gpus, count = gpus - size, count + 1
    return count


def sentence_of(job: JobItem) -> str:
    """Return the state of a job in one sentence."""
    if job.state == "waiting":
        return f"It waits for {job.min_workers} workers of {job.gpus_per_worker} GPUs."
    if job.state == "suspended":
        return "It is suspended: it holds no GPUs and waits for nothing."
    elastic = f", {job.elastic_gpus} of them elastic" if job.elastic_gpus else ""
    return f"It runs with {job.workers} of at most {job.max_workers} workers: {job.gpus} GPUs{elastic}."


def job_time(state: ClusterState, job: str, totals: Sequence[Totals], saves: Iterable[LoggedSave] = ()) -> JobTime:
    """Return the time of a job by kind, and its saves.

    job: KIND/NAMESPACE/NAME. totals: of its logs, at least one, in any order. saves: in any order.
    """
    newest, _ = period(totals, None)
    kinds = rows(newest, None)
    productive = sum(row.share for row in kinds if row.kind == TimeKind.PRODUCTIVE)
    rounds = {each.round: each for each in totals if each.round is not None}
    ended = sorted(rounds.values(), key=lambda each: each.until_s, reverse=True)[:MAX_ROUNDS]
    last_saves = sorted(saves, key=lambda each: (each.at_s, each.step), reverse=True)[:MAX_SAVES]
    return JobTime(
        observed_at_s=state.observed_at_s,
        version=state.version,
        job=job,
        until_at_s=newest.until_s,
        wall_s=newest.wall_s,
        productive=productive if newest.steps_reported else None,
        kinds=tuple(TimeItem(row.kind, row.seconds, row.share, row.gpu_hours) for row in kinds),
        rounds=tuple(RoundItem(each.until_s, each.round or 0, each.reason) for each in ended),
        saves=tuple(
            SaveItem(each.at_s, each.step, each.tier.value, each.outcome.value, each.rank, each.took_s)
            for each in last_saves
        ),
    )
