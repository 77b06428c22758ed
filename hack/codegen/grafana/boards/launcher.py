"""The board of launchers and faulty nodes."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import KNOWN, LAUNCHERS, p99
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

LAUNCHER = Board(
    "launcher",
    "launchers and node health",
    (
        "Which jobs hang or restart often?",
        "What do faults cost?",
        "Which jobs are without a fresh save?",
        "Which nodes are faulty, and may more be tainted?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Jobs that report",
                    "How many jobs have a coordinator that Prometheus sees?",
                    Viz.STAT,
                    (Query("sum(turnout_launcher_is_coordinator{C})", "jobs"),),
                    about=LAUNCHERS,
                ),
                Panel(
                    "Jobs that hang",
                    "How many jobs have a rank without progress?",
                    Viz.STAT,
                    (
                        Query(
                            "count(count by (cluster, JOB) (turnout_launcher_rank_hung{C} == 1)) or vector(0)", "jobs"
                        ),
                    ),
                    limits=Limits(red=1),
                    alert="JobHung",
                ),
                Panel(
                    "Nodes tainted",
                    "How many nodes are proven faulty?",
                    Viz.STAT,
                    (Query('sum(max by (cluster) (turnout_gpu_nodes{C, state="tainted"}))', "nodes"),),
                ),
                Panel(
                    "Taints left",
                    "How many more nodes may be tainted?",
                    Viz.STAT,
                    (
                        Query(
                            "min(max by (cluster) (turnout_gpu_nodes_taint_limit{C})"
                            ' - max by (cluster) (turnout_gpu_nodes{C, state="tainted"}))',
                            "nodes",
                        ),
                    ),
                    limits=Limits(1, 0),
                    alert="TaintLimit",
                ),
                Panel(
                    "Wasted",
                    "Which share of the GPU time was lost with steps that had to be repeated?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(sum_over_time(turnout:queue_gpu_seconds:rate5m{C, kind="wasted"}[R]))'
                            " / sum(sum_over_time(turnout:queue_gpu_seconds:rate5m{C}[R]))" + KNOWN,
                            "wasted",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.02, 0.05),
                ),
            ),
        ),
        Row(
            "Faults",
            (
                Panel(
                    "Badput by kind",
                    "Where does GPU time go that makes no kept step?",
                    Viz.AREA,
                    (Query('sum by (kind) (turnout:queue_gpu_seconds:rate5m{C, kind!="productive"})', "{{kind}}"),),
                    Unit.GPUS,
                    alert="GoodputBurn",
                ),
                Panel(
                    "Rounds by cause",
                    "What makes jobs form new worlds?",
                    Viz.BARS,
                    (Query("sum by (reason) (increase(turnout_launcher_rounds_total{C}[W]))", "{{reason}}"),),
                ),
                Panel(
                    "Losses",
                    "What do jobs lose: workers, coordinators, processes, the fast start?",
                    Viz.BARS,
                    (
                        Query("sum by (reason) (increase(turnout_launcher_members_lost_total{C}[W]))", "{{reason}}"),
                        Query("sum(increase(turnout_launcher_process_failures_total{C}[W]))", "processes failed"),
                        Query("sum(increase(turnout_launcher_spawned_rounds_total{C}[W]))", "started without fork"),
                    ),
                ),
                Panel(
                    "Recovery time",
                    "How long do jobs stand still between two worlds?",
                    Viz.STAT,
                    (Query(p99("turnout_launcher_round_wait_seconds", window="R"), "99 in 100"),),
                    Unit.SECONDS,
                    Limits(60, 300),
                ),
                Panel(
                    "Most restarts",
                    "Which jobs restart most?",
                    Viz.TABLE,
                    (Query("topk(20, max by (cluster, JOB) (turnout_launcher_restarts{C}))", "restarts"),),
                    sort="restarts",
                    alert="JobRestartsOften",
                ),
                Panel(
                    "Most unsaved work",
                    "Which jobs lose most if they die now?",
                    Viz.TABLE,
                    (
                        Query(
                            "topk(20, max by (cluster, JOB) (turnout_job_unsaved_seconds{C}))", "unsaved", Unit.SECONDS
                        ),
                    ),
                    sort="unsaved",
                    alert="JobUnsaved",
                ),
            ),
        ),
        Row(
            "Saves",
            (
                Panel(
                    "Saves without success",
                    "Do saves fail, or does storage take them more slowly than they are made?",
                    Viz.BARS,
                    (
                        Query(
                            'sum by (tier, outcome) (increase(turnout_launcher_saves_total{C, outcome!="done"}[W]))',
                            "{{tier}}: {{outcome}}",
                        ),
                    ),
                    about="A superseded save gave way to a newer one, or the job went on from another step.",
                    alert="SavesFail",
                ),
                Panel(
                    "Oldest saves",
                    "Which jobs have the oldest complete save in storage?",
                    Viz.TABLE,
                    (
                        Query(
                            "topk(20, time() - max by (cluster, JOB)"
                            ' (turnout_launcher_last_save_timestamp_seconds{C, tier="storage"}))',
                            "age",
                            Unit.SECONDS,
                        ),
                    ),
                    about="A job that saves nothing to storage is not in the table.",
                    sort="age",
                    alert="SaveOverdue",
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    "Nodes by state",
                    "How does the number of faulty nodes change?",
                    Viz.LINES,
                    (Query("sum by (state) (max by (cluster, state) (turnout_gpu_nodes{C}))", "{{state}}"),),
                ),
                Panel(
                    "Node changes",
                    "Why are nodes tainted and released?",
                    Viz.BARS,
                    (
                        Query(
                            "sum by (reason, outcome) (increase(turnout_node_changes_total{C}[W])) > 0",
                            "{{reason}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Reports without effect",
                    "Why do reports on nodes change nothing?",
                    Viz.BARS,
                    (Query("sum by (reason) (increase(turnout_node_verdicts_skipped_total{C}[W])) > 0", "{{reason}}"),),
                ),
            ),
        ),
    ),
)
