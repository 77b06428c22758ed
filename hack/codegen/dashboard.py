"""The dashboard of a queue's owner for Grafana, made from code: `python -m hack.codegen.dashboard` writes queue.json.

Classic dashboard JSON, which every Grafana from 10 on imports. What a panel asks and says is here; the form that
Grafana wants it in is in grafana.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hack.codegen.grafana import Column, Kind, Panel, Query, Variable, board

FILE = Path("deploy/grafana/queue.json")

_CLUSTER = 'cluster="$cluster"'
_MINE = f'{_CLUSTER},queue="$queue"'
_JOB = "job_namespace, job_kind, job_name"
_DONE = 'outcome=~"Written|DryRun"'
_USED = 'what="used"'
_WHO = "{{job_namespace}}/{{job_name}}"

VARIABLES = (
    Variable("cluster", "Cluster", "label_values(turnout_queue_jobs, cluster)"),
    Variable("queue", "Queue", f"label_values(turnout_queue_jobs{{{_CLUSTER}}}, queue)"),
)


def _of_queue(metric: str, by: str = "", more: str = "") -> str:
    """A gauge of the queue. The largest, since two replicas tell it in the second in which the lead passes on."""
    labels = f"{_MINE},{more}" if more else _MINE
    return f"max by ({by}) ({metric}{{{labels}}})" if by else f"max({metric}{{{labels}}})"


def _in_range(metric: str, by: str = "", more: str = "") -> str:
    labels = f"{_MINE},{more}" if more else _MINE
    return f"{f'sum by ({by})' if by else 'sum'} (increase({metric}{{{labels}}}[$__range]))"


_WORKERS = _of_queue("turnout_queue_worker_gpus", "part")
_OTHERS = f"clamp_min({_of_queue('turnout_queue_gpus', more=_USED)} - sum({_WORKERS}), 0)"
_ELASTIC = _of_queue("turnout_job_gpus", _JOB, 'part="elastic"')
_SINCE = _of_queue("turnout_job_waiting_since_timestamp_seconds", _JOB)
_WHY = _of_queue("turnout_job_reason", f"{_JOB}, reason")


def _start(bound: str) -> str:
    metric = "turnout_job_estimated_start_timestamp_seconds"
    said = f'bound="{bound}"'
    return f"1000 * {_of_queue(metric, _JOB, said)}"  # Grafana counts milliseconds


def _quantile(share: float) -> str:
    buckets = f"turnout_autoscaler_decide_seconds_bucket{{{_CLUSTER}}}"
    return f"histogram_quantile({share}, sum by (le) (rate({buckets}[$__rate_interval])))"


_QUOTA = (
    Panel(
        "My quota",
        "GPUs: the most that the queue may have (limit), its own share (deserved; what is used beyond it is borrowed), "
        "what its pods use now, those on their way out included, and what is left to the limit (free).",
        Kind.STAT,
        (10, 4),
        tuple(
            Query(_of_queue("turnout_queue_gpus", more=f'what="{what}"'), what, now=True)
            for what in ("limit", "deserved", "used", "free")
        ),
    ),
    Panel(
        "Jobs",
        "Jobs that have their min, that wait for it, and that are suspended.",
        Kind.STAT,
        (6, 4),
        tuple(
            Query(_of_queue("turnout_queue_jobs", more=f'state="{state}"'), state, now=True)
            for state in ("running", "waiting", "suspended")
        ),
    ),
    Panel(
        "GPUs that waiting jobs lack",
        "How many GPUs are missing to the mins of the jobs that wait.",
        Kind.STAT,
        (4, 4),
        (Query(_of_queue("turnout_queue_missing_gpus"), "lacking", now=True),),
        steps=((None, "green"), (1, "yellow")),
    ),
    Panel(
        "Jobs not listed",
        "Jobs that are counted above and missing from the lists by job below: the autoscaler tells at most 200 jobs "
        "one by one, those that wait and the largest first.",
        Kind.STAT,
        (4, 4),
        (Query(_of_queue("turnout_queue_jobs_without_series"), "left out", now=True),),
        steps=((None, "green"), (1, "yellow")),
    ),
    Panel(
        "Quota over time",
        "GPUs used, beside the limit and the queue's own share. Above deserved, the queue borrows.",
        Kind.LINES,
        (12, 8),
        (Query(_of_queue("turnout_queue_gpus", "what", 'what!="free"'), "{{what}}"),),
        axis="GPUs",
    ),
    Panel(
        "Min and elastic over time",
        "What the queue's GPUs do: workers that jobs cannot do without (min), workers lent to them until somebody "
        "needs the room (elastic), and others: pods of no job or of another role, and workers on their way out.",
        Kind.STACK,
        (12, 8),
        (Query(_WORKERS, "{{part}}"), Query(_OTHERS, "others")),
        axis="GPUs",
    ),
)

_HOLDERS = (
    Panel(
        "Who holds it",
        "GPUs of each job's running workers, by what it cannot do without (min) and what it has been lent (elastic).",
        Kind.TABLE,
        (12, 9),
        tuple(
            Query(_of_queue("turnout_job_gpus", _JOB, f'part="{part}"'), part, now=True) for part in ("elastic", "min")
        ),
        columns=(Column("elastic GPUs"), Column("min GPUs")),
    ),
    Panel(
        "Elastic GPUs by job",
        "Who has been lent how much; the twenty that have most.",
        Kind.STACK,
        (12, 9),
        (Query(f"topk(20, {_ELASTIC} > 0)", _WHO),),
        axis="GPUs",
    ),
)

_WAITERS = (
    Panel(
        "What waits, why, and when it starts",
        "Each job that waits for its min: for how long, the autoscaler's reason (docs/autoscaler.md tells each), the "
        "GPUs that it lacks, and when it is expected to start: at the earliest, likely, at the latest. No estimate "
        "means that nothing is known of when room gets free.",
        Kind.TABLE,
        (16, 9),
        (
            Query(f"(time() - {_SINCE}) * on ({_JOB}) group_left (reason) {_WHY}", "waits", now=True),
            Query(_of_queue("turnout_job_missing_gpus", _JOB), "lacks", now=True),
            *(Query(_start(bound), bound, now=True) for bound in ("early", "likely", "late")),
        ),
        columns=(
            Column("waits for", "s"),
            Column("lacks GPUs"),
            Column("earliest start", "dateTimeFromNow"),
            Column("likely start", "dateTimeFromNow"),
            Column("latest start", "dateTimeFromNow"),
        ),
    ),
    Panel(
        "Waiting over time",
        "Jobs that wait for their min, and the GPUs that they lack.",
        Kind.LINES,
        (8, 9),
        (
            Query(_of_queue("turnout_queue_jobs", more='state="waiting"'), "jobs that wait"),
            Query(_of_queue("turnout_queue_missing_gpus"), "GPUs that they lack"),
        ),
    ),
)

_WORTH = (
    Panel(
        "What elasticity gave, and what it cost",
        "GPU time in the range shown: what workers above the min have had, and what the restarts that came with each "
        "change of size are taken to have cost. Lent time should be many times the cost.",
        Kind.STAT,
        (12, 4),
        (
            Query(_in_range("turnout_queue_elastic_gpu_seconds_total"), "GPU time lent", now=True),
            Query(_in_range("turnout_queue_restart_gpu_seconds_total"), "GPU time lost to restarts", now=True),
        ),
        unit="s",
    ),
    Panel(
        "Growths and shrinks",
        "Changes of size in the range shown; each restarts its job once. DryRun: only said, since the autoscaler was "
        "not told to act.",
        Kind.STAT,
        (12, 4),
        (
            Query(
                _in_range("turnout_autoscaler_changes_total", "direction, outcome", _DONE),
                "{{direction}} {{outcome}}",
                now=True,
            ),
        ),
    ),
    Panel(
        "GPUs lent and given back",
        "GPUs of the workers that changes of size added (grow) and took (shrink), a minute.",
        Kind.LINES,
        (8, 8),
        (
            Query(
                f"60 * sum by (direction) (rate(turnout_queue_resized_gpus_total{{{_MINE}}}[$__rate_interval]))",
                "{{direction}}",
            ),
        ),
        axis="GPUs a minute",
    ),
    Panel(
        "Changes by reason and outcome",
        "Changes of size, a minute. Written: done. DryRun: only said. Conflict: somebody changed the job first. "
        "Refused: the API server said no; the autoscaler's log tells why. Nothing is drawn while nothing changes.",
        Kind.BARS,
        (8, 8),
        (
            Query(
                "60 * sum by (reason, outcome) "
                f"(rate(turnout_autoscaler_changes_total{{{_MINE}}}[$__rate_interval])) > 0",
                "{{reason}} {{outcome}}",
            ),
        ),
        axis="changes a minute",
    ),
    Panel(
        "Jobs by reason",
        "What the autoscaler thinks of each job of the queue, also of those that it leaves alone.",
        Kind.STACK,
        (8, 8),
        (Query(_of_queue("turnout_queue_reasons", "reason"), "{{reason}}"),),
        axis="jobs",
    ),
)

_AUTOSCALER = (
    Panel(
        "Autoscalers that lead",
        "One replica decides at a time. None: nothing is lent or taken back. Two: they do not share one Lease.",
        Kind.STAT,
        (4, 6),
        (Query(f"sum(turnout_autoscaler_leading{{{_CLUSTER}}})", "lead", now=True),),
        steps=((None, "red"), (1, "green"), (2, "red")),
    ),
    Panel(
        "Age of what the autoscaler sees",
        "How long ago it heard of nodes or pods, and how long ago it last decided. Above 150 s it changes nothing "
        "(StaleSnapshot).",
        Kind.LINES,
        (10, 6),
        (
            Query(f"max(turnout_autoscaler_observation_age_seconds{{{_CLUSTER}}})", "age of what it sees"),
            Query(
                f"time() - max(turnout_autoscaler_last_decision_timestamp_seconds{{{_CLUSTER}}})",
                "since its last decision",
            ),
        ),
        unit="s",
        steps=((None, "green"), (150, "red")),
    ),
    Panel(
        "Time to decide",
        "Of one decision over all jobs of the cluster: half of them, and all but one in a hundred, are faster.",
        Kind.LINES,
        (10, 6),
        (Query(_quantile(0.5), "half"), Query(_quantile(0.99), "99 in a hundred")),
        unit="s",
        steps=((None, "green"), (1, "red")),
    ),
    Panel(
        "Nodes proven faulty",
        "With --taint-nodes: so many are tainted, suspected or on trial; limit is how many may be tainted at once.",
        Kind.LINES,
        (24, 6),
        (Query(f'max by (what) (turnout_autoscaler_faulty_nodes{{{_CLUSTER},what!="gpu_nodes"}})', "{{what}}"),),
    ),
)

PANELS = (*_QUOTA, *_HOLDERS, *_WAITERS, *_WORTH, *_AUTOSCALER)


def text() -> str:
    """The file as it is to be."""
    return json.dumps(made(), indent=2) + "\n"


def made() -> dict[str, Any]:
    """The board as Grafana reads it."""
    return board("turnout-queue", "Turnout: a queue and its GPUs", VARIABLES, PANELS)


def main() -> int:
    """Write the file."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
