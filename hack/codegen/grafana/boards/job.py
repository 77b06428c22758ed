"""The board of an engineer who trains."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import KINDS, quantile
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

_PREDICTED = "turnout_job_predicted_start_timestamp_seconds"

JOB = Board(
    "job",
    "one job",
    (
        "Does the job run, and how well?",
        "What did faults and resizes cost it?",
        "Is its work saved?",
        "Does it lie well on the switches?",
        "Which rank or pod holds it up?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "State",
                    "What was decided on the job last?",
                    Viz.STAT,
                    (Query("max by (reason) (turnout_job_reason{J})", "{{reason}}"),),
                    about="Empty if the job is not among the 200 listed jobs.",
                ),
                Panel(
                    "GPUs",
                    "How large is the job?",
                    Viz.STAT,
                    (Query("max by (part) (turnout_job_gpus{J})", "{{part}}"),),
                    Unit.GPUS,
                ),
                Panel(
                    "Start",
                    "When does the job start, and when should it have started?",
                    Viz.STAT,
                    (
                        Query(f'1000 * max({_PREDICTED}{{J, bound="likely"}})', "likely"),
                        Query(
                            "1000 * max(turnout_job_promised_start_timestamp_seconds{J})",
                            "latest by the first forecast",
                        ),
                    ),
                    Unit.AGO,
                    about="Empty while the job runs.",
                ),
                Panel(
                    "Goodput",
                    "Which share of the time became kept steps?",
                    Viz.STAT,
                    (
                        Query(
                            '(sum(increase(turnout:job_time_seconds:max{J, kind="productive"}[R]))'
                            " + sum(delta(turnout:job_unsaved_seconds:max{J}[R])))"
                            " / (sum(increase(turnout:job_time_seconds:max{J}[R]))"
                            " + sum(delta(turnout:job_unsaved_seconds:max{J}[R])))",
                            "goodput",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.9, 0.75),
                    "Steps that are not saved yet count as productive here.",
                ),
                Panel(
                    "Unsaved",
                    "How much work is lost if the job dies now?",
                    Viz.STAT,
                    (Query("max(turnout_job_unsaved_seconds{J})", "unsaved"),),
                    Unit.SECONDS,
                ),
                Panel(
                    "Restarts",
                    "How many restarts were charged to the job?",
                    Viz.STAT,
                    (Query("max(turnout_launcher_restarts{J})", "restarts"),),
                    limits=Limits(1, 5),
                ),
            ),
        ),
        Row(
            "Progress",
            (
                Panel(
                    "Workers and ranks",
                    "How large was the world?",
                    Viz.LINES,
                    (
                        Query("max(turnout_launcher_members{J})", "workers"),
                        Query("max(turnout_launcher_ranks{J})", "ranks"),
                    ),
                ),
                Panel(
                    "Time by kind",
                    "What did the job spend its time on?",
                    Viz.AREA,
                    (Query("sum by (kind) (rate(turnout:job_time_seconds:max{J}[5m]))", "{{kind}}"),),
                    Unit.SHARE,
                    about=KINDS,
                ),
                Panel(
                    "Steps",
                    "Does the job make steps, and how fast?",
                    Viz.LINES,
                    (
                        Query("max(turnout_launcher_step{J})", "step"),
                        Query("max(turnout_launcher_step_seconds{J})", "seconds for a step", Unit.SECONDS),
                    ),
                ),
            ),
        ),
        Row(
            "Saves and recovery",
            (
                Panel(
                    "Save age",
                    "How old is the newest complete save, and how often does the training ask for one?",
                    Viz.LINES,
                    (
                        Query("time() - max by (tier) (turnout_launcher_last_save_timestamp_seconds{J})", "{{tier}}"),
                        Query("max by (tier) (turnout_launcher_save_interval_seconds{J})", "{{tier}}: interval"),
                    ),
                    Unit.SECONDS,
                    about="Memory and replica: of the worker that saved last. Storage: of the whole step.",
                    alert="SaveOverdue",
                ),
                Panel(
                    "Saves",
                    "How do the saves of the ranks end?",
                    Viz.BARS,
                    (
                        Query(
                            "sum by (tier, outcome) (increase(turnout_launcher_saves_total{J}[W]))",
                            "{{tier}}: {{outcome}}",
                        ),
                    ),
                    about="A superseded save gave way to a newer one, or the job went on from another step.",
                    alert="SavesFail",
                ),
                Panel(
                    "Rounds by cause",
                    "What made the job form a new world?",
                    Viz.BARS,
                    (Query("sum by (reason) (increase(turnout_launcher_rounds_total{J}[W]))", "{{reason}}"),),
                ),
                Panel(
                    "Time without training",
                    "How long did the job stand still between two worlds?",
                    Viz.STAT,
                    (
                        Query(
                            quantile(0.99, "increase(turnout_launcher_round_wait_seconds_bucket{J}[R])"),
                            "99 in 100",
                        ),
                    ),
                    Unit.SECONDS,
                    Limits(60, 300),
                ),
            ),
        ),
        Row(
            "Placement and health",
            (
                Panel(
                    "Ring crossings",
                    "How many edges of the ring of workers leave a leaf switch, and how many would another order save?",
                    Viz.STAT,
                    (
                        Query("max(turnout_launcher_ring_crossings{J})", "crossings"),
                        Query("max(turnout_launcher_ring_crossings_excess{J})", "too many"),
                    ),
                ),
                Panel(
                    "Hung and suspected ranks",
                    "Which rank stands, and for which rank do the others wait?",
                    Viz.TABLE,
                    (
                        Query("max by (rank, pod) (turnout_launcher_rank_hung{J}) == 1", "hung"),
                        Query("max by (rank) (turnout_launcher_rank_suspected{J}) == 1", "suspected"),
                    ),
                    about="Empty while every rank makes progress.",
                ),
                Panel(
                    "Process failures",
                    "In which pod do processes fail?",
                    Viz.TOTALS,
                    (Query("sum by (pod) (increase(turnout_launcher_process_failures_total{J}[R]))", "{{pod}}"),),
                ),
                Panel(
                    "Members and coordinators lost",
                    "Does the network or a node take workers away?",
                    Viz.TOTALS,
                    (
                        Query(
                            "sum by (reason) (increase(turnout_launcher_members_lost_total{J}[R]))",
                            "member: {{reason}}",
                        ),
                        Query(
                            "sum by (reason) (increase(turnout_launcher_coordinators_lost_total{J}[R]))",
                            "coordinator: {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
    ("namespace", "kind", "job"),
)
