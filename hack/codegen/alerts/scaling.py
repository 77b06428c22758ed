"""The rules about the autoscaler and its queues."""

from __future__ import annotations

from hack.codegen.alerts.model import Alert, Group, Ratio, Severity, absent_in_cluster, slow_share

DECIDE_OVER_1S = Ratio("decide_over_1s", "cluster", *slow_share("turnout_autoscaler_decide_seconds", "1.0"))
RESIZE_REFUSED = Ratio(
    "resize_refused",
    "cluster, queue",
    'rate(turnout_autoscaler_changes_total{outcome="Refused"}[WINDOW])',
    'rate(turnout_autoscaler_changes_total{outcome=~"Written|Refused"}[WINDOW])',
)
RECLAIM_OVER_60S = Ratio("reclaim_over_60s", "cluster, queue", *slow_share("turnout_reclaim_seconds", "60.0"))
_LEADING = 'turnout_leading{component="autoscaler"}'
_JOB = "{{ $labels.job_namespace }}/{{ $labels.job_name }}"
_NAMESPACE = {"namespace": "{{ $labels.job_namespace }}"}

ALERTS = (
    Alert(
        "AutoscalerNoLeader",
        absent_in_cluster(_LEADING),
        Severity.CRITICAL,
        "No autoscaler decides: jobs keep their size, and nobody makes room for jobs that wait.",
        "No autoscaler holds its Lease. Jobs keep their size, and nobody makes room for jobs that wait.",
        "`kubectl get pods,lease -n turnout-system`: is a pod ready, and who holds the Lease `turnout-autoscaler`? "
        "The log of a pod says why it does not lead.",
        "Restart the pods; a restart loses nothing. If the API server refuses the Lease, grant the rights of the "
        "chart again.",
        "Jobs that wait do not start while others hold elastic workers.",
        "2m",
    ),
    Alert(
        "AutoscalerTwoLeaders",
        f"sum by (cluster) ({_LEADING}) > 1",
        Severity.CRITICAL,
        "Two autoscalers decide at the same time.",
        "Two autoscalers decide at the same time. They may resize a job against each other.",
        "`kubectl get deploy -A -l app.kubernetes.io/name=turnout-autoscaler`: are there two installations? Compare "
        "their `--lease`.",
        "Remove one installation, or give both the same Lease.",
        wait="1m",
    ),
    Alert(
        "AutoscalerViewStale",
        "max by (cluster) (turnout_autoscaler_observation_age_seconds) > 150",
        Severity.WARNING,
        "The autoscaler has not heard of nodes or pods for {{ $value | humanizeDuration }}, and changes nothing.",
        "A watch of the autoscaler has been silent for more than 150 seconds. It changes nothing while that lasts; "
        "the reason of every job is `StaleSnapshot`.",
        "The autoscaler's log names the watch and its error. `turnout_watch_synced` and "
        "`turnout_watch_last_event_age_seconds` show which resource.",
        "Repair the API server or the missing right. It goes on by itself.",
        "Jobs keep their size.",
        "2m",
    ),
    Alert(
        "AutoscalerStuck",
        "time() - max by (cluster) (turnout_autoscaler_last_decision_timestamp_seconds) > 60",
        Severity.WARNING,
        "The autoscaler leads and has not decided for {{ $value | humanizeDuration }}.",
        "The autoscaler leads and has not decided for a minute. It decides every five seconds at least.",
        "Its log, and its CPU: a decision that needs more CPU than the pod may have looks the same.",
        "Restart it; a restart loses nothing. Report it with the log if it happens again.",
        wait="1m",
    ),
    Alert(
        "DecisionsSlow",
        DECIDE_OVER_1S.burn_condition(0.01),
        Severity.INFO,
        "{{ $value | humanize }} decisions of the autoscaler took more than a second in six hours.",
        "More than one decision in a hundred takes longer than a second. Jobs that wait are served later by as much.",
        "The board of controllers (*Time to decide*), and the CPU of the pod: is it throttled?",
        "Raise `autoscaler.resources.limits.cpu`.",
    ),
    Alert(
        "ResizesRefused",
        RESIZE_REFUSED.burn_condition(0.01),
        Severity.WARNING,
        "The API server refuses changes of jobs of queue {{ $labels.queue }}.",
        "The API server refuses changes of jobs in this queue.",
        "`resize_failed` in the autoscaler's log has the answer. Often a webhook refuses it, or a right is missing.",
        "Repair the webhook, or grant the right. The change is tried again by itself.",
        "These jobs keep their size.",
    ),
    Alert(
        "QueueStarved",
        'max by (cluster, queue) (turnout_queue_jobs{state="waiting"}) > 0'
        ' and max by (cluster, queue) (turnout_queue_gpus{type="used"}) == 0'
        ' unless max by (cluster, queue) (turnout_queue_gpus{type="limit"}) == 0',
        Severity.WARNING,
        "{{ $value }} jobs of queue {{ $labels.queue }} wait, and the queue holds nothing.",
        "Jobs of the queue wait for ten minutes, and the queue holds no GPU. Queues with a limit of 0 are left out.",
        "`turnout queues`, then `turnout why JOB` of the first job that waits. On the page: the view Queues.",
        "The next step that `turnout why` names. Common: the min is larger than the quota, or other schedulers hold "
        "the nodes.",
        wait="10m",
    ),
    Alert(
        "JobStartLate",
        "time() - max by (cluster, queue, JOB) (turnout_job_promised_start_timestamp_seconds) > 1800",
        Severity.WARNING,
        f"Job {_JOB} should have started {{{{ $value | humanizeDuration }}}} ago by its first forecast.",
        "A waiting job is half an hour later than the latest start of its first forecast.",
        "`turnout why JOB`: who is before it, and what changed? On the board of queues: *Who waits, why and until "
        "when*.",
        "The next step that `turnout why` names. Tell the owner of the job the new forecast.",
        wait="10m",
        labels=_NAMESPACE,
    ),
    Alert(
        "ReclaimSlow",
        RECLAIM_OVER_60S.burn_condition(0.01),
        Severity.CRITICAL,
        "Queue {{ $labels.queue }} waits longer than a minute for GPUs that it lent.",
        "More than one return of lent GPUs in a hundred takes longer than a minute, from the decision that elastic "
        "workers leave until the min of the waiting job is bound.",
        "`turnout history` of the elastic jobs: do their workers end in time? `kubectl get pods` shows pods that end "
        "slowly (`Terminating`).",
        "Shorten the grace period or the last save of these jobs. Stop growth meanwhile: `turnout pause`.",
        "The owner of the queue cannot use the quota.",
    ),
    Alert(
        "QueueFlaps",
        'sum by (cluster, queue) (increase(turnout_autoscaler_changes_total{outcome="Written"}[30m]))'
        ' > 6 * clamp_min(max by (cluster, queue) (turnout_queue_jobs{state="running"}), 1)',
        Severity.INFO,
        "Jobs of queue {{ $labels.queue }} are resized more than six times in half an hour.",
        "Jobs of the queue are resized more than six times each in half an hour. Each resize costs a restart.",
        "`turnout history JOB`: what makes room, and for whom?",
        "Raise `--cooldown-s`, or keep some GPUs free for jobs that come (`--headroom-gpus`).",
    ),
    Alert(
        "DecisionLogLosses",
        "sum by (cluster) (increase(turnout_decision_log_lost_total[15m])) > 0",
        Severity.INFO,
        "{{ $value | humanize }} decisions are missing in the decision log.",
        "The disk of the decision log was too slow. `turnout history` and replays miss these decisions.",
        "The volume of the autoscaler's decision log: its size and its latency.",
        "Use a faster volume, or a larger one.",
    ),
    Alert(
        "TaintLimit",
        'max by (cluster) (turnout_gpu_nodes{state="tainted"}) >= max by (cluster) (turnout_gpu_nodes_taint_limit) > 0',
        Severity.WARNING,
        "{{ $value }} nodes are tainted, as many as may be: further faulty nodes stay in use.",
        "As many nodes are tainted as may be at once. Nodes that are proven faulty now stay in use.",
        "`turnout nodes` lists the nodes and what proved them faulty.",
        "Repair the nodes, then `turnout nodes untaint NODE`. If many nodes fail at once, look for a common cause "
        "such as a driver or a switch.",
        wait="10m",
    ),
    Alert(
        "Fragmented",
        'sum by (cluster) (rate(turnout_idle_gpu_seconds_total{reason="fragmented"}[1h]))'
        " > 0.05 * sum by (cluster) (max by (cluster, state) (turnout_cluster_gpus))",
        Severity.INFO,
        "{{ $value | humanize }} GPUs are idle because they are scattered.",
        "More than one GPU in twenty is idle for hours because free GPUs are scattered, while jobs wait.",
        "The board of placement: *Largest gang that fits*. On the page: the view Fabric.",
        "Let elastic jobs shrink on the nodes in question, or move small jobs together.",
        wait="1h",
    ),
)
GROUP = Group(
    "autoscaler",
    tuple(record for ratio in (DECIDE_OVER_1S, RESIZE_REFUSED, RECLAIM_OVER_60S) for record in ratio.records()),
    ALERTS,
)
