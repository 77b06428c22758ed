"""The rules about the job controllers, about the page, and about what all programs have in common."""

from __future__ import annotations

from hack.codegen.alerts.model import Alert, Group, Ratio, Severity, absent_in_cluster

API_REFUSED = Ratio(
    "api_refused",
    "cluster, component",
    'rate(turnout_api_requests_total{code!~"[123]xx|404|409"}[WINDOW])',
    "rate(turnout_api_requests_total[WINDOW])",
)
_CONTROLLER = 'turnout_leading{component="controller"}'
_QUIET = "max by (cluster, component, resource) (turnout_watch_last_event_age_seconds) > 150"
_UNSYNCED = "min by (cluster, component, resource) (turnout_watch_synced) == 0"

CONTROLLER = Group(
    "controller",
    (),
    (
        Alert(
            "ControllerNoLeader",
            absent_in_cluster(_CONTROLLER),
            Severity.CRITICAL,
            "No job controller writes: new jobs get no pods, and lost pods are not replaced.",
            "No job controller leads. New jobs get no pods, and lost pods are not replaced.",
            "`kubectl get pods,lease -n turnout-system`, and the log of a pod of the controller manager.",
            "Restart the pods; a restart loses nothing.",
            wait="2m",
        ),
        Alert(
            "ControllerTwoLeaders",
            f"sum by (cluster) ({_CONTROLLER}) > 1",
            Severity.CRITICAL,
            "Two controller managers write at the same time.",
            "Two controller managers write at the same time. Jobs may get pods twice.",
            "`kubectl get deploy -A -l app.kubernetes.io/name=turnout-controller`: are there two installations? "
            "Compare their `--lease`.",
            "Remove one installation, or give both the same Lease.",
            wait="1m",
        ),
        Alert(
            "ControllerErrors",
            "sum by (cluster, job_kind) (increase(turnout_controller_internal_errors_total[15m])) > 0",
            Severity.WARNING,
            "A job of kind {{ $labels.job_kind }} could not be decided on or written, by a fault of ours.",
            "A job could not be decided on or written, by a fault of ours. Other jobs go on.",
            "An Event on the job names the error; the controller's log has the traceback.",
            "Report it with the job's object. A changed spec may avoid it meanwhile.",
        ),
        Alert(
            "ControllerBacklog",
            "max by (cluster) (turnout_controller_workqueue_depth) > 100",
            Severity.WARNING,
            "{{ $value }} jobs wait for a decision of their controller.",
            "More than 100 jobs have waited for a decision for ten minutes. New jobs get their pods late.",
            "The board of controllers: *Time to decide* and *Calls of the API server*. Is the pod throttled?",
            "Raise `controller.resources.limits.cpu`, or repair the API server.",
            wait="10m",
        ),
        Alert(
            "ClockJump",
            "max by (cluster) (abs(turnout_controller_clock_jump_seconds)) > 0",
            Severity.WARNING,
            "The clock of the controllers' node jumped by {{ $value | humanizeDuration }}.",
            "The clock of a node jumps again and again. Ends and deletions by time are delayed meanwhile.",
            "`kubectl get pods -o wide -n turnout-system` names the node. Is its time synchronised (NTP)?",
            "Repair the time of the node.",
            wait="2m",
        ),
    ),
)
PROGRAMS = Group(
    "programs",
    tuple(API_REFUSED.records()),
    (
        Alert(
            "WatchStale",
            f"{_QUIET} or {_UNSYNCED}",
            Severity.WARNING,
            "The {{ $labels.component }} hears nothing of {{ $labels.resource }}.",
            "A program has no list of a resource, or its watch has been silent for more than 150 seconds.",
            "The log of the program names the watch and its error. The board of the extender: *Watches of all "
            "programs*.",
            "Repair the API server, or grant the right to list and watch the resource.",
            "The program decides on an old view, or not at all.",
            "5m",
        ),
        Alert(
            "ApiRefused",
            API_REFUSED.burn_condition(0.01),
            Severity.WARNING,
            "The API server refuses calls of the {{ $labels.component }}.",
            "More than one call in a hundred ends with an error. Conflicts and missing objects do not count.",
            "The board of controllers: *Calls of the API server*. 403: a right is missing. 422: a webhook or a schema "
            "refuses. 429: the API server throttles. 5xx and none: it is not well.",
            "Grant the rights of the chart again, or repair the webhook or the API server.",
        ),
    ),
    about="of every program",
)
PAGE = Group(
    "page",
    (),
    (
        Alert(
            "PageStale",
            "max by (cluster) (turnout_page_data_age_seconds) > 300",
            Severity.INFO,
            "The live page shows a picture that is {{ $value | humanizeDuration }} old.",
            "The page has heard nothing of the cluster for five minutes. It shows the old picture and its age.",
            "`kubectl get pods -n turnout-system -l app.kubernetes.io/name=turnout-page`, and the log of a pod.",
            "Repair the API server or the rights of the page; restart the pod.",
            wait="5m",
        ),
    ),
)
