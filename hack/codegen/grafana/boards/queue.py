"""The board of queue owners."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import DAY_S, HOUR_S, KINDS, KNOWN, LAUNCHERS, RULE_S, quantile
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

_PREDICTED = "turnout_job_predicted_start_timestamp_seconds"
_BY_JOB = "max by (cluster, queue, JOB)"

QUEUE = Board(
    "queue",
    "queues",
    (
        "What is my quota, and what is used, borrowed and lent?",
        "Who holds it?",
        "Who waits, why, and until when?",
        "How fast did lent GPUs come back?",
        "What did resizes and idle GPUs cost?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Quota",
                    "How much may the queue have, and what does it use?",
                    Viz.STAT,
                    (Query("sum by (type) (max by (cluster, queue, type) (turnout_queue_gpus{Q}))", "{{type}}"),),
                    Unit.GPUS,
                    about="Limit: the most it may have. Deserved: its own share. Available: what is left to the limit.",
                ),
                Panel(
                    "Jobs",
                    "How many jobs run, wait for their min and are suspended?",
                    Viz.STAT,
                    (Query("sum by (state) (max by (cluster, queue, state) (turnout_queue_jobs{Q}))", "{{state}}"),),
                ),
                Panel(
                    "GPUs missing",
                    "How many GPUs are missing to the mins of the jobs that wait?",
                    Viz.STAT,
                    (Query("sum(max by (cluster, queue) (turnout_queue_missing_gpus{Q}))", "missing"),),
                    Unit.GPUS,
                    Limits(1),
                ),
                Panel(
                    "Longest wait",
                    "How long has the first of the waiting jobs waited?",
                    Viz.STAT,
                    (Query("time() - min(turnout_job_waiting_since_timestamp_seconds{Q})", "waits"),),
                    Unit.SECONDS,
                    Limits(HOUR_S, DAY_S),
                    "Empty if no job waits.",
                ),
                Panel(
                    "Next start",
                    "When does the next waiting job likely start?",
                    Viz.STAT,
                    (Query(f'1000 * min({_PREDICTED}{{Q, bound="likely"}})', "likely"),),
                    Unit.AGO,
                    about="Empty if no job waits, or if no end of a running job is known.",
                ),
            ),
        ),
        Row(
            "Use",
            (
                Panel(
                    "Quota over time",
                    "When did the queue borrow?",
                    Viz.LINES,
                    (
                        Query(
                            'max by (cluster, queue, type) (turnout_queue_gpus{Q, type!="available"})',
                            "{{queue}} {{type}}",
                        ),
                    ),
                    Unit.GPUS,
                    about="Where used is above deserved.",
                ),
                Panel(
                    "Min and elastic over time",
                    "How much of the use can shrink?",
                    Viz.AREA,
                    (
                        Query(
                            "sum by (part) (max by (cluster, queue, part) (turnout_queue_worker_gpus{Q}))", "{{part}}"
                        ),
                        Query(
                            'clamp_min(sum(max by (cluster, queue) (turnout_queue_gpus{Q, type="used"}))'
                            " - sum(max by (cluster, queue, part) (turnout_queue_worker_gpus{Q})), 0)",
                            "other pods",
                        ),
                    ),
                    Unit.GPUS,
                    about="Elastic workers are above the min of their job, and leave first.",
                ),
                Panel(
                    "Jobs not listed",
                    "How many jobs are missing in the tables of jobs?",
                    Viz.STAT,
                    (Query("sum(max by (cluster, queue) (turnout_queue_unlisted_jobs{Q}))", "jobs"),),
                    limits=Limits(1),
                    about="200 jobs are listed: of each queue those that wait, then the largest. Sums count all jobs.",
                ),
                Panel(
                    "Who holds it",
                    "Which jobs hold the GPUs?",
                    Viz.TABLE,
                    tuple(
                        Query(f'{_BY_JOB} (turnout_job_gpus{{Q, part="{part}"}})', f"{part} GPUs")
                        for part in ("elastic", "min")
                    ),
                    sort="min GPUs",
                ),
            ),
        ),
        Row(
            "Waiting",
            (
                Panel(
                    "Who waits, why and until when",
                    "Why does each job wait, how much is before it, and when does it start?",
                    Viz.TABLE,
                    (
                        Query(
                            f"(time() - {_BY_JOB} (turnout_job_waiting_since_timestamp_seconds{{Q}}))"
                            " * on (cluster, queue, JOB) group_left (reason)"
                            " topk by (cluster, queue, JOB)"
                            " (1, max by (cluster, queue, JOB, reason) (turnout_job_reason{Q}))",
                            "waits",
                            Unit.SECONDS,
                        ),
                        Query(f"{_BY_JOB} (turnout_job_missing_gpus{{Q}})", "missing GPUs"),
                        Query(f"{_BY_JOB} (turnout_job_gpus_ahead{{Q}})", "GPUs ahead"),
                        *(
                            Query(f'1000 * {_BY_JOB} ({_PREDICTED}{{Q, bound="{bound}"}})', bound, Unit.TIME)
                            for bound in ("earliest", "likely", "latest")
                        ),
                    ),
                    about="The cell of a job leads to its reasons on the page.",
                    sort="waits",
                    links="why",
                ),
                Panel(
                    "Jobs by reason",
                    "Why are jobs left as they are?",
                    Viz.AREA,
                    (
                        Query(
                            "sum by (reason) (max by (cluster, queue, reason) (turnout_queue_jobs_by_reason{Q}))",
                            "{{reason}}",
                        ),
                    ),
                    about="docs/reference/reasons.md explains each word.",
                ),
                Panel(
                    "Starts inside the forecast",
                    "How often did a job start inside the first forecast for it?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(increase(turnout_start_predictions_total{Q, result="inside"}[R]))'
                            " / sum(increase(turnout_start_predictions_total{Q}[R]))" + KNOWN,
                            "inside",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.8, 0.5),
                ),
            ),
        ),
        Row(
            "Lending",
            (
                Panel(
                    "Elastic GPU hours",
                    "How much GPU time did workers above the min have?",
                    Viz.STAT,
                    (Query("sum(increase(turnout_queue_elastic_gpu_seconds_total{Q}[R])) / 3600", "elastic"),),
                    Unit.GPU_HOURS,
                ),
                Panel(
                    "Return time",
                    "How long did the queue wait for the GPUs that it had lent?",
                    Viz.STAT,
                    tuple(
                        Query(
                            quantile(share, "increase(turnout_reclaim_seconds_bucket{Q}[R])"),
                            name,
                        )
                        for share, name in ((0.5, "half"), (0.99, "99 in 100"))
                    ),
                    Unit.SECONDS,
                    Limits(60, 120),
                    "From the decision that elastic workers leave until the min of the waiting job is bound.",
                    alert="ReclaimSlow",
                ),
                Panel(
                    "Lent by and lent to",
                    "Who used the GPUs of this queue, and whose GPUs did it use?",
                    Viz.TABLE,
                    (
                        Query(
                            "sum by (lender, borrower) ("
                            'increase(turnout_lent_gpu_seconds_total{C, lender=~"$queue"}[R])'
                            ' or increase(turnout_lent_gpu_seconds_total{C, borrower=~"$queue"}[R])'
                            ") / 3600",
                            "GPU hours",
                        ),
                    ),
                    Unit.GPU_HOURS,
                    sort="GPU hours",
                ),
                Panel(
                    "GPUs returned",
                    "How many GPUs did borrowers give back?",
                    Viz.TOTALS,
                    (
                        Query(
                            'sum by (lender, borrower) (increase(turnout_returned_gpus_total{C, lender=~"$queue"}[R]))',
                            "{{borrower}} to {{lender}}",
                        ),
                    ),
                    Unit.GPUS,
                ),
                Panel(
                    "Resizes",
                    "How often were jobs resized, and why?",
                    Viz.TABLE,
                    (
                        Query(
                            "sum by (direction, reason, outcome)"
                            " (increase(turnout_autoscaler_changes_total{Q}[R])) > 0",
                            "resizes",
                        ),
                        Query("sum by (direction) (increase(turnout_queue_resized_gpus_total{Q}[R])) > 0", "GPUs"),
                    ),
                    sort="resizes",
                    alert="ResizesRefused",
                ),
            ),
        ),
        Row(
            "Cost",
            (
                Panel(
                    "Cost of resizes",
                    "How much GPU time did resizes cost?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(sum_over_time(turnout:queue_gpu_seconds:rate5m{Q, kind=~"elastic_.+"}[R]))'
                            f" * {RULE_S} / 3600",
                            "measured",
                        ),
                        Query(
                            "sum(increase(turnout_queue_assumed_restart_gpu_seconds_total{Q}[R])) / 3600",
                            "assumed",
                        ),
                    ),
                    Unit.GPU_HOURS,
                    about=f"Assumed: by --restart-s. {LAUNCHERS}",
                    alert="LendingLoses",
                ),
                Panel(
                    "GPU time by kind",
                    "What do the GPUs of the queue spend their time on?",
                    Viz.AREA,
                    (Query("sum by (kind) (turnout:queue_gpu_seconds:rate5m{Q})", "{{kind}}"),),
                    Unit.GPUS,
                    about=f"{KINDS} {LAUNCHERS}",
                ),
                Panel(
                    "Idle GPU hours by reason",
                    "Why did GPUs of the queue stay idle?",
                    Viz.TOTALS,
                    (
                        Query(
                            "sum by (reason) (increase(turnout_idle_gpu_seconds_total{Q}[R])) / 3600",
                            "{{reason}}",
                        ),
                    ),
                    Unit.GPU_HOURS,
                ),
            ),
        ),
    ),
    ("queue",),
)
