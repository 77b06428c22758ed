"""The board of the job controllers and the autoscaler."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import p99
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

CONTROLLERS = Board(
    "controllers",
    "controllers and autoscaler",
    (
        "Do decisions become objects?",
        "How fast does a new job get its first pod?",
        "Does the API server refuse anything?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Leaders",
                    "Does each program have exactly one leader?",
                    Viz.STAT,
                    (
                        Query(
                            "max by (component) (sum by (cluster, component)"
                            ' (turnout_leading{C, component=~"controller|autoscaler"}))',
                            "{{component}}",
                        ),
                    ),
                    limits=Limits(good=1),
                ),
                Panel(
                    "Jobs",
                    "How many jobs do the controllers hold, by phase?",
                    Viz.STAT,
                    (
                        Query(
                            "sum by (phase) (max by (cluster, job_kind, phase) (turnout_controller_jobs{C}))",
                            "{{phase}}",
                        ),
                    ),
                ),
                Panel(
                    "Internal errors",
                    "Did an error of ours end a decision?",
                    Viz.STAT,
                    (Query("sum(increase(turnout_controller_internal_errors_total{C}[R]))", "errors"),),
                    limits=Limits(red=1),
                    alert="ControllerErrors",
                ),
                Panel(
                    "Age of the view",
                    "How old is what the autoscaler knows of nodes and pods?",
                    Viz.STAT,
                    (Query("max(turnout_autoscaler_observation_age_seconds{C})", "age"),),
                    Unit.SECONDS,
                    Limits(60, 150),
                    alert="AutoscalerViewStale",
                ),
                Panel(
                    "Last decision",
                    "How long ago did the autoscaler decide?",
                    Viz.STAT,
                    (
                        Query(
                            "max(time() - max by (cluster) (turnout_autoscaler_last_decision_timestamp_seconds{C}))",
                            "ago",
                        ),
                    ),
                    Unit.SECONDS,
                    Limits(30, 60),
                    alert="AutoscalerStuck",
                ),
            ),
        ),
        Row(
            "Speed",
            (
                Panel(
                    "Work queue",
                    "How many jobs wait for a decision of a controller?",
                    Viz.LINES,
                    (Query("max by (cluster) (turnout_controller_workqueue_depth{C})", "jobs {{cluster}}"),),
                    alert="ControllerBacklog",
                ),
                Panel(
                    "Time to decide",
                    "How long does a decision take?",
                    Viz.LINES,
                    (
                        Query(p99("turnout_controller_decide_seconds"), "controllers, a job"),
                        Query(p99("turnout_autoscaler_decide_seconds"), "autoscaler, the cluster"),
                    ),
                    Unit.SECONDS,
                    Limits(red=1),
                    "99 decisions in 100 are faster.",
                    alert="DecisionsSlow",
                ),
                Panel(
                    "Time to the first pod",
                    "How long does an owner wait for the first pod of a new job?",
                    Viz.STAT,
                    (Query(p99("turnout_controller_first_pod_seconds", "le, job_kind", "R"), "{{job_kind}}"),),
                    Unit.SECONDS,
                    Limits(5, 30),
                ),
            ),
        ),
        Row(
            "Writes",
            (
                Panel(
                    "Calls of the API server",
                    "Which program calls the API server, and what does it answer?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (component, verb, code) (rate(turnout_api_requests_total{C}[W])) > 0",
                            "{{component}} {{verb}} {{code}}",
                        ),
                    ),
                    Unit.PER_SECOND,
                    alert="ApiRefused",
                ),
                Panel(
                    "Objects written",
                    "What do the controllers create, change and delete?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (verb, resource) (rate(turnout_controller_writes_total{C}[W]))",
                            "{{verb}} {{resource}}",
                        ),
                    ),
                    Unit.PER_SECOND,
                ),
                Panel(
                    "Restarts",
                    "Which kinds of jobs restart, and why?",
                    Viz.BARS,
                    (
                        Query(
                            "sum by (job_kind, reason) (increase(turnout_controller_restarts_total{C}[W]))",
                            "{{job_kind}}: {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    "Minimums of native gangs",
                    "How often did a resize change the minCount of a PodGroup, and what came of it?",
                    Viz.BARS,
                    (
                        Query(
                            "sum by (reason, outcome) (increase(turnout_gang_min_changes_total{C}[W]))",
                            "{{reason}}: {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Events",
                    "What do the controllers report on jobs?",
                    Viz.TABLE,
                    (
                        Query(
                            "sum by (job_kind, reason) (increase(turnout_controller_events_total{C}[R])) > 0", "events"
                        ),
                    ),
                    sort="events",
                ),
                Panel(
                    "Clock and decision log",
                    "Did a clock jump, and are decisions missing in the log?",
                    Viz.STAT,
                    (
                        Query("max(abs(turnout_controller_clock_jump_seconds{C}))", "clock jump", Unit.SECONDS),
                        Query("sum(increase(turnout_decision_log_lost_total{C}[R]))", "decisions lost"),
                    ),
                    limits=Limits(red=1),
                ),
            ),
        ),
    ),
)
