"""The rules about the extender, the nominator and its gates."""

from __future__ import annotations

from hack.codegen.alerts.model import Alert, Group, Ratio, Severity, absent_in_cluster, slow_share

_REQUESTS = "turnout_extender_requests_total"
NO_ADVICE = Ratio(
    "extender_no_advice",
    "cluster, verb",
    f'rate({_REQUESTS}{{outcome=~"no_advice|busy|too_slow|unready"}}[WINDOW])',
    f"rate({_REQUESTS}[WINDOW])",
)
OVER_500MS = Ratio(
    "extender_over_500ms", "cluster, verb", *slow_share("turnout_extender_request_duration_seconds", "0.5")
)
_FAILURES = "turnout_nominator_patch_failures_total"
_SUCCESSES = {
    "nomination": "turnout_nominations_total",
    "gate": "turnout_gates_lifted_total",
    "switch_path": "turnout_switch_paths_written_total",
}
PATCH_REFUSED = Ratio(
    "patch_refused",
    "cluster, what",
    f'rate({_FAILURES}{{error!~"Conflict|NotFound"}}[WINDOW])',
    " or ".join(
        [
            f"rate({_FAILURES}[WINDOW])",
            *(
                f'label_replace(rate({series}[WINDOW]), "what", "{what}", "", "")'
                for what, series in _SUCCESSES.items()
            ),
        ]
    ),
)
_EXTENDER = 'turnout_build_info{component="extender"}'
_NOMINATOR = 'turnout_leading{component="nominator"}'
_GANG = "{{ $labels.gang_namespace }}/{{ $labels.gang_name }}"
_NAMESPACE = {"namespace": "{{ $labels.gang_namespace }}"}
_DAY = 86_400
_EXPIRY = "min by (cluster, pod) (turnout_tls_certificate_expiry_timestamp_seconds) - time()"
_CERTIFICATE = (
    "The certificate of {{ $labels.pod }} ends in {{ $value | humanizeDuration }}.",
    "The certificate of the extender ends in less than two weeks. After that, kube-scheduler refuses its answers.",
    "The Secret that `extender.tls` names, and who renews it.",
    "`helm upgrade` renews the chart's own certificate. cert-manager renews by itself. A Secret of yours is renewed "
    "by you. It is read again without a restart.",
)

EXTENDER_ALERTS = (
    Alert(
        "ExtenderGone",
        absent_in_cluster(_EXTENDER),
        Severity.WARNING,
        "No extender is there: kube-scheduler places pods of gangs wherever there is room.",
        "No extender is there. kube-scheduler places pods of gangs wherever there is room. Nothing is blocked.",
        "`kubectl get pods -n turnout-system -l app.kubernetes.io/name=turnout-extender`, and the log of a pod.",
        "Restart the pods. Pods that were placed meanwhile stay where they are.",
        "Gangs are placed across more switches.",
        "5m",
    ),
    Alert(
        "ExtenderNoAdvice",
        NO_ADVICE.burn_condition(0.001),
        Severity.CRITICAL,
        "{{ $value | humanize }} requests for {{ $labels.verb }} got no advice of the extender in six hours.",
        "The extender answers requests without advice.",
        "The board of the extender: *Requests* and *Errors and pods not judged*. [extender.md](extender.md) says what "
        "each outcome and each reason means. The log has the request.",
        "`late`, `busy` or `too_slow`: give it more CPU. `failed`: report it with the log. `unready`: look at its "
        "watches.",
        "Gangs are placed without it.",
    ),
    Alert(
        "ExtenderSlow",
        OVER_500MS.burn_condition(0.001),
        Severity.WARNING,
        "{{ $value | humanize }} answers of the extender to {{ $labels.verb }} took more than half a second in six "
        "hours.",
        "More than one answer in a thousand takes longer than half a second. kube-scheduler waits for `httpTimeout` "
        "and then goes on without the extender.",
        "The board of the extender: *Time by phase*. Is the pod throttled?",
        "Raise `extender.resources.limits.cpu`.",
    ),
    Alert(
        "PlanRejected",
        "sum by (cluster, term) (increase(turnout_plans_rejected_total[15m])) > 0",
        Severity.WARNING,
        "A gang is refused for a fault of the planner: {{ $labels.term }}.",
        "The planner made a plan that breaks a term which the gang requires, or ended with an error for this gang "
        "(`planning_failed`). No plan is used, and the gang waits. This is a fault of Turnout.",
        "The Event `PlanRejected` on the gang's pods names the term, or the place of the error. `turnout topology` "
        "shows the map.",
        "Report it with the gang's pods, its PodGroup and the map. Delete the gang's waiting pods to have it planned "
        "anew.",
        "The gang waits.",
    ),
    Alert(
        "MapErrors",
        "max by (cluster) (turnout_topology_map_errors) > 0",
        Severity.WARNING,
        "The newest map of switches has {{ $value }} errors; the last good map stays in use.",
        "The newest map of switches has errors. The last good map stays in use.",
        "`kubectl describe configmap node-topology-config -n turnout-system`: Events name each line. "
        "`turnout topology check FILE` does, too.",
        "Correct the lines. The map is read again by itself.",
        "New hosts are not on the map.",
        "10m",
    ),
    Alert(
        "CertificateExpires",
        f"{_EXPIRY} < {14 * _DAY} and {_EXPIRY} >= {2 * _DAY}",
        Severity.WARNING,
        *_CERTIFICATE,
        urgency="Now if it is less than two days.",
    ),
    Alert("CertificateExpires", f"{_EXPIRY} < {2 * _DAY}", Severity.CRITICAL, *_CERTIFICATE, has_runbook=False),
    Alert(
        "GangBreaksRule",
        "max by (cluster, gang_namespace, gang_name) (turnout_gang_violation_pods) > 0",
        Severity.WARNING,
        f"{{{{ $value }}}} pods of gang {_GANG} are spread wider than it requires, or hold GPUs while the rest waits.",
        "Pods of this gang are spread wider than the gang requires, or hold GPUs while the rest of the gang waits, "
        "for 15 minutes.",
        "`turnout why JOB`: which rule, and what hinders it?",
        "What `turnout why` says. With `turnout.dev/repair`, the gang is repaired by itself.",
        wait="15m",
        labels=_NAMESPACE,
    ),
)
NOMINATOR_ALERTS = (
    Alert(
        "NominatorNoLeader",
        absent_in_cluster(_NOMINATOR),
        Severity.CRITICAL,
        "No nominator leads: plans are not written, and pods may wait behind our gate.",
        "No nominator leads. Plans are not written on pods, and pods may wait behind our scheduling gate.",
        "`kubectl get pods,lease -n turnout-system`, and the log of the nominator. `turnout release` lists the pods "
        "that wait.",
        "Restart the nominator. If that takes long, `turnout release --all` lets the pods go without a plan.",
        "Gated pods do not start. Without gates, gangs are placed pod by pod.",
        "2m",
    ),
    Alert(
        "NominatorTwoLeaders",
        f"sum by (cluster) ({_NOMINATOR}) > 1",
        Severity.CRITICAL,
        "Two nominators write at the same time.",
        "Two nominators write at the same time. They may give two gangs the same hosts.",
        "`kubectl get deploy -A -l app.kubernetes.io/name=turnout-nominator`: are there two installations? Compare "
        "their `--lease`.",
        "Remove one installation, or give both the same Lease.",
        wait="1m",
    ),
    Alert(
        "PatchesRefused",
        PATCH_REFUSED.burn_condition(0.01),
        Severity.WARNING,
        "The API server refuses the nominator's patches of pods ({{ $labels.what }}).",
        "The API server refuses the nominator's patches. The label `what` says which: nominations, gates, or switch "
        "paths.",
        "The label `error` of `turnout_nominator_patch_failures_total`, and the nominator's log. Often a right or an "
        "admission policy is missing.",
        "Grant the rights of the chart again, or except the nominator from the policy. `turnout release` lets gated "
        "pods go meanwhile.",
        "Now if `what` is `gate`: gated pods do not start.",
    ),
)
GATE_ALERTS = (
    Alert(
        "GateStuck",
        'max by (cluster, gang_namespace, gang_name) (turnout_gate_oldest_seconds{reason="planned"}) > 60',
        Severity.WARNING,
        f"Gang {_GANG} has a plan and has been gated for {{{{ $value | humanizeDuration }}}}.",
        "A gang has a plan, and its gates have not been lifted for a minute.",
        "The log of the nominator names the pods and the error.",
        "Correct the right or the policy that the log names. `turnout release` lets the pods go without a plan.",
        wait="2m",
        labels=_NAMESPACE,
    ),
)
EXTENDER = Group(
    "extender", tuple(record for ratio in (NO_ADVICE, OVER_500MS) for record in ratio.records()), EXTENDER_ALERTS
)
NOMINATOR = Group("nominator", tuple(PATCH_REFUSED.records()), NOMINATOR_ALERTS)
GATES = Group("gates", (), GATE_ALERTS)
