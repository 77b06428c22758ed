"""The board of placement: gangs, switches, the map."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import KNOWN, LAUNCHERS
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

PLACEMENT = Board(
    "placement",
    "placement",
    (
        "Do gangs lie on as few leaf switches as possible?",
        "How large a gang still fits under one switch?",
        "Which hosts does the map not name?",
        "What does fragmentation cost?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Largest gang that fits",
                    "How large a gang of whole hosts fits under one switch of each tier?",
                    Viz.STAT,
                    (
                        Query(
                            "max by (tier) (turnout_fabric_largest_gang_gpus{C})",
                            "tier {{tier}}",
                        ),
                    ),
                    Unit.GPUS,
                ),
                Panel(
                    "Gangs on fewest leaves",
                    "Which share of the gangs lies on as few leaf switches as it can?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(max by (cluster) (turnout_gangs_by_excess_leaves{C, excess="0"}))'
                            " / sum(max by (cluster, excess) (turnout_gangs_by_excess_leaves{C}))" + KNOWN,
                            "fewest",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.95, 0.8),
                ),
                Panel(
                    "Pods that break a rule",
                    "How many bound pods belong to a gang that is too wide or not whole?",
                    Viz.STAT,
                    (Query("max by (rule) (turnout_gang_pods_violating{C})", "{{rule}}"),),
                    limits=Limits(1),
                    alert="GangBreaksRule",
                ),
                Panel(
                    "Hosts not on the map",
                    "How many GPU nodes does the map of switches not name?",
                    Viz.STAT,
                    (Query("max(turnout_unmapped_hosts{C})", "hosts"),),
                    limits=Limits(1),
                ),
                Panel(
                    "Map errors",
                    "Has the newest map errors?",
                    Viz.STAT,
                    (Query("max(turnout_topology_map_errors{C})", "errors"),),
                    limits=Limits(red=1),
                    about="While it has, the last good map stays in use.",
                    alert="MapErrors",
                ),
            ),
        ),
        Row(
            "Gangs",
            (
                Panel(
                    "Largest gang over time",
                    "Is the fabric fragmented more than before?",
                    Viz.LINES,
                    (Query("max by (tier) (turnout_fabric_largest_gang_gpus{C})", "tier {{tier}}"),),
                    Unit.GPUS,
                ),
                Panel(
                    "Gangs by excess leaves",
                    "How many leaf switches too many do gangs use?",
                    Viz.AREA,
                    (
                        Query(
                            "sum by (excess) (max by (cluster, excess) (turnout_gangs_by_excess_leaves{C}))",
                            "{{excess}} too many",
                        ),
                    ),
                ),
                Panel(
                    "Gangs by state",
                    "How many gangs are placed, wait or have only some of their pods placed?",
                    Viz.AREA,
                    (Query("sum by (state) (max by (cluster, state) (turnout_gangs{C}))", "{{state}}"),),
                ),
                Panel(
                    "Worst gangs",
                    "Which gangs use too many leaf switches or break a rule?",
                    Viz.TABLE,
                    (
                        Query(
                            "topk(20, max by (cluster, gang_namespace, gang_name) (turnout_gang_excess_leaves{C}) > 0)",
                            "leaves too many",
                        ),
                        Query(
                            "max by (cluster, gang_namespace, gang_name) (turnout_gang_violation_pods{C}) > 0",
                            "pods that break a rule",
                        ),
                    ),
                    sort="leaves too many",
                ),
                Panel(
                    "Most ring crossings",
                    "Which jobs send most data over upper switches?",
                    Viz.TABLE,
                    (
                        Query("topk(20, max by (cluster, JOB) (turnout_launcher_ring_crossings{C}))", "crossings"),
                        Query("max by (cluster, JOB) (turnout_launcher_ring_crossings_excess{C}) > 0", "too many"),
                    ),
                    about=LAUNCHERS,
                    sort="crossings",
                ),
            ),
        ),
        Row(
            "Refusals, map and cost",
            (
                Panel(
                    "Refused answers",
                    "Why do pods get no place?",
                    Viz.LINES,
                    (Query("sum by (reason) (rate(turnout_extender_refused_answers_total{C}[W]))", "{{reason}}"),),
                    Unit.PER_SECOND,
                    about="Retries count again.",
                ),
                Panel(
                    "Rejected plans",
                    "Did the planner make a plan that breaks a required term?",
                    Viz.BARS,
                    (Query("sum by (term) (increase(turnout_plans_rejected_total{C}[W]))", "{{term}}"),),
                    about="Each is a fault of Turnout, and none is used.",
                ),
                Panel(
                    "Reserved nodes",
                    "How many nodes are reserved for gangs that move or preempt, and did these gangs get them?",
                    Viz.LINES,
                    (
                        Query("max by (reason) (turnout_reserved_hosts{C})", "reserved: {{reason}}"),
                        Query(
                            "sum by (reason, end) (increase(turnout_reservations_ended_total{C}[W]))",
                            "ended: {{reason}}, {{end}}",
                        ),
                    ),
                ),
                Panel(
                    "Map of switches",
                    "How many hosts does the map name, and how old is it?",
                    Viz.STAT,
                    (
                        Query("max(turnout_topology_hosts{C})", "hosts"),
                        Query(
                            "time() - max(turnout_topology_last_reload_timestamp_seconds{C})",
                            "age",
                            Unit.SECONDS,
                        ),
                    ),
                ),
                Panel(
                    "Map reloads",
                    "Were new maps taken, held or refused?",
                    Viz.TOTALS,
                    (Query("sum by (outcome) (increase(turnout_topology_reloads_total{C}[R]))", "{{outcome}}"),),
                    about="Counts of replicas are added up.",
                ),
                Panel(
                    "Hours lost to fragmentation",
                    "How much GPU time was idle because it was scattered or in pieces that are too small?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(increase(turnout_idle_gpu_seconds_total{C, reason=~"fragmented|too_small"}[R]))'
                            " / 3600",
                            "lost",
                        ),
                    ),
                    Unit.GPU_HOURS,
                    alert="Fragmented",
                ),
            ),
        ),
    ),
)
