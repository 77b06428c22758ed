"""The answers of the page's JSON interface, `/api/v1`. The OpenAPI document is generated from these structs.

Names of times end in `_at_s` (seconds since 1970) or `_s` (durations), names of amounts in `_gpus`.
"""

from __future__ import annotations

import msgspec

# The value of GpuCells.job for a GPU that nobody holds, and for one whose job the viewer may not see.
FREE_CELL, HIDDEN_CELL = 0xFFFF, 0xFFFE
# The values of GpuCells.part.
PART_FREE, PART_MIN, PART_ELASTIC, PART_OTHER = range(4)
# The states of a host, the most urgent first: NodeItem.state is one of them, GpuCells.state has their positions.
STATES = ("faulty", "missing", "not ready", "cordoned", "ready")


class Answer(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of every answer."""

    # When the cluster was observed, in seconds since 1970.
    observed_at_s: float
    # Rises with each observation that differs from the one before; the `id` of events in the stream.
    version: int


class ListAnswer(Answer, kw_only=True, frozen=True):
    """The fields of every list."""

    # Rows that match the filters, on all pages.
    total: int
    # The value of `continue` that gives the next page; "" on the last page.
    next: str = msgspec.field(default="", name="continue")


class Summary(Answer, kw_only=True, frozen=True):
    """The cluster in numbers."""

    # All GPUs that nodes offer.
    gpus: int
    # GPUs of pods that have a node.
    used_gpus: int
    # Of these, GPUs of workers above their job's min.
    elastic_gpus: int
    # The sum of QueueItem.lent_gpus: GPUs of queues' quotas that other queues use.
    lent_gpus: int
    # GPUs that a new pod may get.
    free_gpus: int
    # Nodes all of whose GPUs are free.
    whole_free_nodes: int
    # Nodes with the taint of a fault.
    faulty_nodes: int
    # Nodes that an admin has closed.
    cordoned_nodes: int
    # Nodes with GPUs that the map of switches does not name.
    unmapped_nodes: int
    # Jobs that wait for their min.
    waiting_jobs: int
    # GPUs that these lack to their mins.
    waiting_gpus: int
    running_jobs: int
    # Why there is no map of switches, "" if there is one.
    map_fault: str


class SwitchRow(msgspec.Struct, frozen=True):
    """One switch of the map."""

    # Its path from the root, joined by "/".
    path: str
    # 1 for a leaf switch.
    tier: int


class HostRow(msgspec.Struct, frozen=True):
    """One host of the map, or a node that the map does not name."""

    node: str
    # The path of its leaf switch; "" for a node that the map does not name.
    switch: str
    gpus: int


class FabricTree(Answer, kw_only=True, frozen=True):
    """The map of switches. Hosts stand in the order of the map; unmapped nodes come last."""

    # The number of tiers of switches, 0 without a map.
    tiers: int
    # Depth first, from the root.
    switches: tuple[SwitchRow, ...]
    hosts: tuple[HostRow, ...]
    map_fault: str


class JobRef(msgspec.Struct, frozen=True):
    """A job that holds GPUs."""

    # KIND/NAMESPACE/NAME.
    job: str
    queue: str
    gpus: int


class GpuCells(Answer, kw_only=True, frozen=True):
    """Who holds each GPU. Kubernetes does not tell which GPU of a node a pod has: cells of a node are in job order."""

    # The position of the first host in FabricTree.hosts.
    first_host: int
    # The number of GPUs of each host.
    counts: tuple[int, ...]
    # One byte per host, as base64: the position of its state in STATES.
    state: str
    # The jobs that the cells name.
    jobs: tuple[JobRef, ...]
    # Two bytes per GPU, little endian, as base64: position in `jobs`, FREE_CELL or HIDDEN_CELL.
    job: str
    # One byte per GPU, as base64: PART_FREE, PART_MIN, PART_ELASTIC or PART_OTHER.
    part: str


class LargestGang(msgspec.Struct, frozen=True):
    """The largest gang of whole free nodes that fits under one switch of a tier."""

    tier: int
    # The path of the switch.
    switch: str
    nodes: int
    gpus: int


class LargestGangs(Answer, kw_only=True, frozen=True):
    """The largest free gang of each tier, from the leaf up."""

    items: tuple[LargestGang, ...]


class LandingRow(msgspec.Struct, frozen=True):
    """One node on which pods of a gang would land."""

    node: str
    switch: str
    # Their ranks, as in 0-3,8.
    ranks: str
    gpus: int


class LandingAnswer(Answer, kw_only=True, frozen=True):
    """Where a gang would land if it came now."""

    fits: bool
    landings: tuple[LandingRow, ...]
    sentences: tuple[str, ...]


class QueueItem(msgspec.Struct, frozen=True):
    """One queue, in GPUs. None where no object states the amount, and everywhere but the name if it is hidden."""

    queue: str
    # True if the viewer may see none of its namespaces.
    hidden: bool = False
    open: bool = True
    quota_gpus: int | None = None
    limit_gpus: int | None = None
    used_gpus: int | None = None
    # Used by workers up to their job's min, and by pods that are no job's.
    min_gpus: int | None = None
    # Used by workers above their job's min.
    elastic_gpus: int | None = None
    # Of the quota, used by queues that use more than theirs; an estimate.
    lent_gpus: int | None = None
    # Used beyond the quota.
    borrowed_gpus: int | None = None
    # Of the quota, used by nobody.
    idle_gpus: int | None = None
    running_jobs: int | None = None
    waiting_jobs: int | None = None
    # Missing to the mins of its waiting jobs.
    waiting_gpus: int | None = None


class QueueList(ListAnswer, kw_only=True, frozen=True):
    """The queues by name."""

    items: tuple[QueueItem, ...]
    # GPUs of the cluster that a new pod may get.
    free_gpus: int


class QueueSample(msgspec.Struct, array_like=True, frozen=True):
    """A queue at one moment."""

    at_s: float
    quota_gpus: int | None
    # None: from here on nothing is known, up to the next sample.
    min_gpus: int | None
    elastic_gpus: int | None
    lent_gpus: int | None
    idle_gpus: int | None
    borrowed_gpus: int | None


class QueueHistory(Answer, kw_only=True, frozen=True):
    """A queue over time: from Prometheus, if the page knows one, and since this page began to observe."""

    queue: str
    # Oldest first: at most 720 of this page, and 1,440 of Prometheus before them.
    samples: tuple[QueueSample, ...]
    # Since when this page has observed the queue itself, since 1970; None before the first sample.
    own_since_at_s: float | None = None
    # Why the time before is not known; "" if it is, or if the page knows no Prometheus.
    note: str = ""


class Start(msgspec.Struct, frozen=True):
    """The expected start of a job, in seconds since 1970. None: never, or unknown."""

    earliest_at_s: float | None
    likely_at_s: float | None
    latest_at_s: float | None


class JobItem(msgspec.Struct, kw_only=True, frozen=True):
    """One job."""

    # KIND/NAMESPACE/NAME.
    job: str
    kind: str
    namespace: str
    name: str
    queue: str
    # waiting, running or suspended.
    state: str
    # Workers that have a node.
    workers: int
    min_workers: int
    max_workers: int
    gpus_per_worker: int
    # GPUs that it holds, of all its roles.
    gpus: int
    # Of these, of workers above its min.
    elastic_gpus: int
    # Since when it is in this state; None if its object does not tell.
    since_at_s: float | None
    # The reason word of the last decision.
    reason: str
    # A sentence of evidence.
    evidence: str
    # The next step, and by whom.
    next_step: str
    # Waiting jobs that stand before it in its queue, and the GPUs that they lack.
    before_jobs: int = 0
    before_gpus: int = 0
    # None for a job that does not wait, or whose start is not known.
    start: Start | None = None


class JobList(ListAnswer, kw_only=True, frozen=True):
    """Jobs: first the waiting ones, in the order in which they start, then the others by name."""

    items: tuple[JobItem, ...]


class RingCost(msgspec.Struct, frozen=True):
    """What the ring of a job's workers crosses, by tier from the leaf up."""

    # Edges between two leaf switches, two switches of tier 2 and so on; tier by tier from the leaf.
    crossings: tuple[int, ...]
    # Switches of each tier under which the gang lies.
    switches: tuple[int, ...]
    # The fewest leaf switches that could hold as many GPUs.
    fewest_leaves: int


class RankRow(msgspec.Struct, frozen=True):
    """One worker of a job."""

    rank: int
    pod: str
    node: str
    switch: str
    # The lowest tier above this worker and the next one; 0 on one node, None if a node is not on the map.
    tier_to_next: int | None
    # True if it is above the job's min.
    elastic: bool


class SizeSample(msgspec.Struct, array_like=True, frozen=True):
    """The workers of a job at one moment."""

    at_s: float
    workers: int


class JobSizes(Answer, kw_only=True, frozen=True):
    """The size of a job over time before this page began to observe it, from Prometheus."""

    job: str
    # Oldest first, only changes, at most 500.
    sizes: tuple[SizeSample, ...] = ()
    # Why nothing is known; "" if it is.
    note: str = ""


class DecisionItem(msgspec.Struct, kw_only=True, frozen=True):
    """One decision that a component of Turnout has reported."""

    # When it was reported last, in seconds since 1970.
    at_s: float
    # How often it was reported.
    times: int
    component: str
    # The reason word.
    reason: str
    # grow, shrink, hold, fault or other: the glyph of the row.
    glyph: str
    # KIND/NAMESPACE/NAME of the object.
    object: str
    namespace: str
    queue: str
    sentence: str


class DecisionList(ListAnswer, kw_only=True, frozen=True):
    """Decisions, the newest first."""

    items: tuple[DecisionItem, ...]


class JobDetail(Answer, kw_only=True, frozen=True):
    """One job, with its workers, its places, and what was decided on it."""

    item: JobItem
    # The state in one sentence.
    sentence: str
    # Why it is as it is, link by link: what the row is about, and the text.
    why: tuple[tuple[str, str], ...]
    ring: RingCost | None
    # In the order of ranks, at most 1,024.
    ranks: tuple[RankRow, ...]
    # Its size since this page began to observe; only changes.
    sizes: tuple[SizeSample, ...]
    # The newest first, at most 100.
    decisions: tuple[DecisionItem, ...]


class TimeItem(msgspec.Struct, frozen=True):
    """What was spent on one kind of a job's time."""

    # A kind of docs/goodput.md, or "undecided".
    kind: str
    seconds: float
    # Of the wall time, 0 to 1.
    share: float
    gpu_hours: float


class RoundItem(msgspec.Struct, frozen=True):
    """The end of a round: the processes were started again after it, or the job ended."""

    at_s: float
    round: int
    # A word of the launcher: process_failed, member_lost and so on.
    reason: str


class SaveItem(msgspec.Struct, frozen=True):
    """The end of a save: a complete step in storage, or a save that failed."""

    at_s: float
    step: int
    # memory, replica or storage.
    tier: str
    # done or failed.
    outcome: str
    # Of a save that failed; None for a whole step.
    rank: int | None
    # Since the training process asked for it; None if it did not.
    took_s: float | None


class JobTime(Answer, kw_only=True, frozen=True):
    """What the time of a job was spent on, as its launcher has measured it."""

    job: str
    # Why nothing is known; "" if it is.
    missing: str = ""
    # The end of the measured time, in seconds since 1970.
    until_at_s: float | None = None
    # The sum of all kinds.
    wall_s: float | None = None
    # The share of steps whose result was preserved, 0 to 1; None if the job reports no steps.
    productive: float | None = None
    kinds: tuple[TimeItem, ...] = ()
    # The newest first, at most 50.
    rounds: tuple[RoundItem, ...] = ()
    # The newest first, at most 50.
    saves: tuple[SaveItem, ...] = ()


class UsageList(ListAnswer, kw_only=True, frozen=True):
    """GPU-hours of a time, as `turnout usage` prints them: one report, as far as this viewer may see it."""

    # Why nothing, or nothing newer, is known; "" if it is.
    missing: str = ""
    # user, job, queue, day or lending: what the rows are.
    by: str
    # The time: today in UTC, and the days before it.
    days: int
    # The measured part of that time.
    measured_s: float = 0.0
    # The names of the fields of a row, in order. docs/accounting.md describes them.
    columns: tuple[str, ...]
    items: tuple[dict[str, str | float], ...] = ()


class NodeItem(msgspec.Struct, frozen=True):
    """One node with GPUs."""

    node: str
    # One of STATES.
    state: str
    # What its object says of the state.
    evidence: str
    switch: str
    gpus: int
    used_gpus: int
    # The jobs on it that the viewer may see.
    jobs: tuple[str, ...]


class NodeList(ListAnswer, kw_only=True, frozen=True):
    """Nodes with GPUs and hosts of the map, in the order of STATES."""

    items: tuple[NodeItem, ...]
    # The number of nodes in each state.
    states: dict[str, int]


class Viewer(msgspec.Struct, frozen=True):
    """Who is logged in, and what this page shows."""

    # "" for the person at this machine.
    user: str
    # True if this viewer may see the jobs of all namespaces.
    all_namespaces: bool
    cluster: str
    # The docs site and Grafana, for links; "" where an admin has named none.
    docs_url: str = ""
    grafana_url: str = ""
    # Namespaces with jobs in which this viewer's right is not known yet: their jobs are hidden.
    unknown_namespaces: int = 0


class Problem(msgspec.Struct, frozen=True):
    """An error: what is wrong, and the next step."""

    error: str
    next_step: str = ""
