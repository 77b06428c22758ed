"""The board of the extender and the nominator."""

from __future__ import annotations

from hack.codegen.grafana.boards.common import DAY_S, KNOWN, p99
from hack.codegen.grafana.model import Board, Limits, Panel, Query, Row, Unit, Viz

EXTENDER = Board(
    "extender",
    "extender and nominator",
    (
        "Does kube-scheduler get advice, and how fast?",
        "Are plans written on pods, and are gates lifted in time?",
        "Do the programs hear from the API server?",
    ),
    (
        Row(
            "",
            (
                Panel(
                    "Replicas",
                    "How many replicas does Prometheus see?",
                    Viz.STAT,
                    (
                        Query(
                            'count by (component) (turnout_build_info{C, component=~"extender|nominator"})',
                            "{{component}}",
                        ),
                    ),
                    limits=Limits(2, 1),
                    alert="ExtenderGone",
                ),
                Panel(
                    "No advice",
                    "Which share of the requests gets no advice?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(rate(turnout_extender_requests_total{C, outcome=~"no_advice|busy|too_slow|unready"}'
                            "[R]))"
                            " / sum(rate(turnout_extender_requests_total{C}[R]))" + KNOWN,
                            "no advice",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.001, 0.01),
                    alert="ExtenderNoAdvice",
                ),
                Panel(
                    "Slowest answers",
                    "How long do 99 answers in 100 take at most?",
                    Viz.STAT,
                    (Query(p99("turnout_extender_request_duration_seconds", window="R"), "99 in 100"),),
                    Unit.SECONDS,
                    Limits(0.1, 0.5),
                    alert="ExtenderSlow",
                ),
                Panel(
                    "Gated pods",
                    "How many pods wait behind our gate, and how long has a gang with a plan waited?",
                    Viz.STAT,
                    (
                        Query("max(turnout_gated_pods{C})", "pods"),
                        Query('max(turnout_gate_oldest_seconds{C, reason="planned"})', "with a plan", Unit.SECONDS),
                    ),
                    about="Empty unless nominator.gates is on.",
                    alert="GateStuck",
                ),
                Panel(
                    "Certificate",
                    "For how long is the certificate still valid?",
                    Viz.STAT,
                    (Query("min(turnout_tls_certificate_expiry_timestamp_seconds{C}) - time()", "valid for"),),
                    Unit.SECONDS,
                    Limits(14 * DAY_S, 2 * DAY_S),
                    "Empty without TLS.",
                    alert="CertificateExpires",
                ),
            ),
        ),
        Row(
            "Requests",
            (
                Panel(
                    "Requests",
                    "How many requests come, and how do they end?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (verb, outcome) (rate(turnout_extender_requests_total{C}[W]))",
                            "{{verb}} {{outcome}}",
                        ),
                    ),
                    Unit.PER_SECOND,
                ),
                Panel(
                    "Time to answer",
                    "Which verb is slow?",
                    Viz.LINES,
                    (Query(p99("turnout_extender_request_duration_seconds", "le, verb"), "{{verb}}"),),
                    Unit.SECONDS,
                    Limits(red=0.5),
                    "99 answers in 100 are faster.",
                ),
                Panel(
                    "Time by phase",
                    "What does the extender spend its time on?",
                    Viz.AREA,
                    (Query("sum by (phase) (rate(turnout_extender_phase_duration_seconds_sum{C}[W]))", "{{phase}}"),),
                    Unit.SHARE,
                    about="1 is one core.",
                ),
                Panel(
                    "Nodes per answer",
                    "How large are the answers?",
                    Viz.HEATMAP,
                    (Query("sum by (le) (increase(turnout_extender_answer_nodes_bucket{C}[W]))", "{{le}}"),),
                ),
                Panel(
                    "Load of each replica",
                    "Is the load spread over the replicas?",
                    Viz.LINES,
                    (
                        Query("sum by (pod) (turnout_extender_requests_in_flight{C})", "requests {{pod}}"),
                        Query("sum by (pod) (turnout_extender_connections{C})", "connections {{pod}}"),
                    ),
                ),
                Panel(
                    "Errors and pods not judged",
                    "Why is there no advice?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (verb, reason) (rate(turnout_extender_errors_total{C}[W]))", "{{verb}}: {{reason}}"
                        ),
                        Query(
                            "sum by (reason) (rate(turnout_extender_unjudged_answers_total{C}[W]))",
                            "not judged: {{reason}}",
                        ),
                    ),
                    Unit.PER_SECOND,
                ),
            ),
        ),
        Row(
            "Watches of all programs",
            (
                Panel(
                    "Time since the last event",
                    "Does every watch bring news?",
                    Viz.LINES,
                    (
                        Query(
                            "max by (component, resource) (turnout_watch_last_event_age_seconds{C})",
                            "{{component}} {{resource}}",
                        ),
                        Query(
                            "1 - min by (component, resource) (turnout_watch_synced{C}) > 0",
                            "no list: {{component}} {{resource}}",
                            Unit.COUNT,
                        ),
                    ),
                    Unit.SECONDS,
                    Limits(60, 150),
                    alert="WatchStale",
                ),
                Panel(
                    "Watch trouble",
                    "How often does a watch start again, and how many objects does it hold?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (component, resource) (rate(turnout_watch_reconnects_total{C}[W])"
                            " + rate(turnout_watch_relists_total{C}[W]) + rate(turnout_watch_skipped_total{C}[W]))",
                            "{{component}} {{resource}}",
                            Unit.PER_SECOND,
                        ),
                        Query("max by (resource) (turnout_watch_objects{C})", "objects: {{resource}}"),
                    ),
                ),
            ),
        ),
        Row(
            "Nominator",
            (
                Panel(
                    "Nominations",
                    "How many plans are written and cleared, and why?",
                    Viz.LINES,
                    (Query("sum by (reason) (rate(turnout_nominations_total{C}[W]))", "{{reason}}"),),
                    Unit.PER_SECOND,
                ),
                Panel(
                    "Patches",
                    "Does the API server refuse what the nominator writes?",
                    Viz.LINES,
                    (
                        Query(
                            "sum by (what, error) (rate(turnout_nominator_patch_failures_total{C}[W])) > 0",
                            "{{what}}: {{error}}",
                        ),
                        Query("sum(rate(turnout_switch_paths_written_total{C}[W]))", "switch paths written"),
                    ),
                    Unit.PER_SECOND,
                    alert="PatchesRefused",
                ),
                Panel(
                    "Time behind the gate",
                    "How long do pods wait behind our gate?",
                    Viz.LINES,
                    (Query(p99("turnout_gate_wait_seconds"), "99 in 100"),),
                    Unit.SECONDS,
                ),
                Panel(
                    "Gates lifted",
                    "Why are gates lifted?",
                    Viz.LINES,
                    (Query("sum by (reason) (rate(turnout_gates_lifted_total{C}[W]))", "{{reason}}"),),
                    Unit.PER_SECOND,
                ),
                Panel(
                    "Bound as nominated",
                    "Which share of the pods landed on the node of the plan?",
                    Viz.STAT,
                    (
                        Query(
                            'sum(increase(turnout_gate_bindings_total{C, as_nominated="true"}[R]))'
                            " / sum(increase(turnout_gate_bindings_total{C}[R]))" + KNOWN,
                            "as nominated",
                        ),
                    ),
                    Unit.SHARE,
                    Limits(0.99, 0.9),
                ),
                Panel(
                    "Evictions and repairs",
                    "How many pods were evicted for gangs?",
                    Viz.BARS,
                    (
                        Query(
                            "sum by (outcome) (increase(turnout_gate_evictions_total{C}[W]))",
                            "for gated gangs: {{outcome}}",
                        ),
                        Query("sum by (reason) (increase(turnout_gang_repairs_total{C}[W]))", "repair: {{reason}}"),
                    ),
                ),
                Panel(
                    "Certificate reloads",
                    "Were new certificates loaded?",
                    Viz.TOTALS,
                    (Query("sum by (outcome) (increase(turnout_tls_reloads_total{C}[R]))", "{{outcome}}"),),
                ),
            ),
        ),
    ),
)
