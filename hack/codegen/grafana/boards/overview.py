"""The board of administrators: all queues and programs."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import KINDS, KNOWN, LAUNCHERS
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

OVERVIEW = Board(
    "overview",
    "overview",
    (
        "Is all well?",
        "Who uses what?",
        "What is idle or wasted, and why?",
        "Who lends to whom?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Alerts that fire",
                    "Does something need attention?",
                    Viz.STAT,
                    (
                        Query(
                            'count(ALERTS{C, alertname=~"Turnout.+", alertstate="firing"}) or vector(0)',
                            "alerts",
                        ),
                    ),
                    limits=Limits(1, 5),
                    about="docs/runbooks.md says for each alert what to do.",
                ),
                Panel(
                    "GPUs used",
                    "Which share of the GPUs do pods use?",
                    Viz.GAUGE,
                    (
                        Query(
                            'sum(max by (cluster, state) (turnout_cluster_gpus{C, state="used"}))'
                            " / sum(max by (cluster, state) (turnout_cluster_gpus{C}))" + KNOWN,
                            "used",
                        ),
                    ),
                    Unit.SHARE,
                ),
                Panel(
                    "GPUs not used",
                    "How many GPUs are free, faulty or on closed nodes?",
                    Viz.STAT,
                    (
                        Query(
                            'sum by (state) (max by (cluster, state) (turnout_cluster_gpus{C, state!="used"}))',
                            "{{state}}",
                        ),
                    ),
                    Unit.GPUS,
                ),
                Panel(
                    "Jobs that wait",
                    "How many jobs wait for their min?",
                    Viz.STAT,
                    (Query('sum(max by (cluster, queue) (turnout_queue_jobs{C, state="waiting"}))', "jobs"),),
                ),
                Panel(
                    "Goodput",
                    "Which share of the GPU time became kept steps?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(sum_over_time(turnout:queue_gpu_seconds:rate5m{C, kind="productive"}[R]))'
                            " / sum(sum_over_time(turnout:queue_gpu_seconds:rate5m{C}[R]))" + KNOWN,
                            "goodput",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.9, 0.75),
                    LAUNCHERS,
                ),
                Panel(
                    "Elastic GPUs",
                    "How many GPUs do workers above the min of their jobs use?",
                    Viz.STAT,
                    (Query('sum(max by (cluster, queue) (turnout_queue_worker_gpus{C, part="elastic"}))', "elastic"),),
                    Unit.GPUS,
                ),
            ),
        ),
        Row(
            "Queues",
            (
                Panel(
                    "Quota and use of each queue",
                    "Who may have how much, and who uses it?",
                    Viz.TABLE,
                    tuple(
                        Query(f'max by (cluster, queue) (turnout_queue_gpus{{C, type="{type_}"}})', type_)
                        for type_ in ("used", "deserved", "limit", "available")
                    ),
                    Unit.GPUS,
                    about="Use beyond deserved is borrowed.",
                    sort="used",
                ),
                Panel(
                    "GPUs used by queue",
                    "How did the use of each queue change?",
                    Viz.AREA,
                    (
                        Query(
                            'topk(20, max by (cluster, queue) (turnout_queue_gpus{C, type="used"}))',
                            "{{queue}}",
                        ),
                    ),
                    Unit.GPUS,
                    about="The 20 largest.",
                ),
            ),
        ),
        Row(
            "GPU hours",
            (
                Panel(
                    "GPU time by kind",
                    "What do the GPUs of jobs spend their time on?",
                    Viz.AREA,
                    (Query("sum by (kind) (turnout:queue_gpu_seconds:rate5m{C})", "{{kind}}"),),
                    Unit.GPUS,
                    about=f"{KINDS} {LAUNCHERS}",
                ),
                Panel(
                    "Idle GPU hours by reason",
                    "Why are GPUs idle?",
                    Viz.TOTALS,
                    (
                        Query(
                            "sum by (reason) (increase(turnout_idle_gpu_seconds_total{C}[R])) / 3600",
                            "{{reason}}",
                        ),
                    ),
                    Unit.GPU_HOURS,
                ),
                Panel(
                    "Who lent to whom",
                    "Whose idle GPUs did which queue use?",
                    Viz.TABLE,
                    (
                        Query(
                            "sum by (lender, borrower) (increase(turnout_lent_gpu_seconds_total{C}[R])) / 3600",
                            "GPU hours",
                        ),
                    ),
                    Unit.GPU_HOURS,
                    about="Borrowed GPUs count for the lenders in proportion to their unused share: a convention.",
                    sort="GPU hours",
                ),
            ),
        ),
        Row(
            "Programs",
            (
                Panel(
                    "Leaders",
                    "Does each program have exactly one leader?",
                    Viz.STAT,
                    (Query("max by (component) (sum by (cluster, component) (turnout_leading{C}))", "{{component}}"),),
                    limits=Limits(good=1),
                ),
                Panel(
                    "Live page",
                    "Is the page current, and does anybody look at it?",
                    Viz.STAT,
                    (
                        Query("max(turnout_page_data_age_seconds{C})", "age", Unit.SECONDS),
                        Query("sum(turnout_page_viewers{C})", "viewers"),
                    ),
                    about="Empty without the page's Deployment.",
                    alert="PageStale",
                ),
                Panel(
                    "Builds",
                    "Which version of each program runs?",
                    Viz.TABLE,
                    (Query("count by (cluster, component, version) (turnout_build_info{C})", "replicas"),),
                ),
                Panel(
                    "Nodes by health",
                    "How many GPU nodes are proven faulty, suspected or on trial?",
                    Viz.LINES,
                    (
                        Query(
                            'sum by (state) (max by (cluster, state) (turnout_gpu_nodes{C, state!="all"}))', "{{state}}"
                        ),
                    ),
                ),
            ),
        ),
    ),
)
