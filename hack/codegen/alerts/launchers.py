"""The rules about jobs whose launcher is scraped: their time, faults and coordinators."""

from __future__ import annotations

from hack.codegen.alerts.model import JOB_QUEUE, Alert, Group, Ratio, Record, Severity, with_queue

_JOB = "{{ $labels.job_namespace }}/{{ $labels.job_name }}"
_NAMESPACE = {"namespace": "{{ $labels.job_namespace }}"}
_RATE = "turnout:queue_gpu_seconds:rate5m"
_BY_JOB = "sum by (cluster, JOB)"
_FAULTS = 'turnout_launcher_rounds_total{reason=~"process_failed|process_hung|member_lost|member_silent"}'
_COORDINATES = "turnout_launcher_is_coordinator"
_OFTEN = f"{_BY_JOB} (increase({_FAULTS}[1h])) > 3 and {_BY_JOB} (increase({_FAULTS}[6h])) > 6"
_COORDINATORS = (
    f"{_BY_JOB} ({_COORDINATES}) > 1 or"
    f" ({_BY_JOB} ({_COORDINATES}) == 0 and {_BY_JOB} (max_over_time({_COORDINATES}[1h])) > 0)"
)
_SAVES = "turnout_launcher_saves_total"
SAVE_FAILED = Ratio(
    "save_failed",
    "cluster, JOB, tier",
    f'rate({_SAVES}{{outcome="failed"}}[WINDOW])',
    f'rate({_SAVES}{{outcome!="superseded"}}[WINDOW])',
)
_FEW_SAVES_FAIL = (  # of a job that saves too rarely for a budget
    "turnout:save_failed:increase6h > 2 and turnout:save_failed:ratio6h > 0.5 and turnout:save_failed:ratio1h > 0.5"
)
_LAST_SAVE = 'max by (cluster, JOB) (turnout_launcher_last_save_timestamp_seconds{tier="storage"})'
_SAVE_INTERVAL = 'max by (cluster, JOB) (turnout_launcher_save_interval_seconds{tier="storage"})'
_SAVE_OVERDUE = f"time() - {_LAST_SAVE} > 3 * {_SAVE_INTERVAL} or {_SAVE_INTERVAL} unless {_LAST_SAVE}"


def _badput(window: str) -> str:
    """Return the query of the share of time that is not productive, by cluster and queue. window: as in "1h"."""
    return (
        f'sum by (cluster, queue) (sum_over_time({_RATE}{{queue!="",kind!="productive"}}[{window}]))'
        f' / sum by (cluster, queue) (sum_over_time({_RATE}{{queue!=""}}[{window}]))'
    )


RECORDS = (
    Record(
        JOB_QUEUE,
        "topk by (cluster, JOB) (1, max by (cluster, queue, JOB) (turnout_job_info))",
        "A job that moves between queues has two for a moment: one is taken, or each rule that joins it would fail.",
    ),
    Record(
        "turnout:job_gpu_seconds:max",
        "max by (cluster, JOB, kind) (turnout_job_gpu_seconds_total)",
        "Totals of a job come from whichever pod coordinates. The largest is the newest.",
    ),
    Record("turnout:job_time_seconds:max", "max by (cluster, JOB, kind) (turnout_job_time_seconds_total)"),
    Record("turnout:job_unsaved_seconds:max", "max by (cluster, JOB) (turnout_job_unsaved_seconds)"),
    Record(
        _RATE,
        "sum by (cluster, queue, kind) (rate(turnout:job_gpu_seconds:max[5m])"
        f" * on (cluster, JOB) group_left (queue) {JOB_QUEUE}"
        f" or rate(turnout:job_gpu_seconds:max[5m]) unless on (cluster, JOB) {JOB_QUEUE})",
        "GPUs of a queue by what they spend their time on. Add it up with sum_over_time: avg_over_time ignores gaps. "
        "Jobs whose queue nobody knows are summed without the label queue.",
    ),
    Record("turnout:queue_badput:ratio1h", _badput("1h")),
    Record("turnout:queue_badput:ratio6h", _badput("6h")),
)
ALERTS = (
    Alert(
        "JobHung",
        with_queue("max by (cluster, JOB) (turnout_launcher_rank_hung) == 1"),
        Severity.CRITICAL,
        f"Job {_JOB} stands still: a rank makes no progress.",
        "A training process has made no progress for ten minutes, and the others wait for it.",
        "The board of the job: *Hung and suspected ranks*. The launcher's log has the stacks of the processes "
        "(`stacks_gathered`). [hang-detection.md](hang-detection.md)",
        "Restart the worker of the suspected rank. If it hangs again, replace its node.",
        "The GPUs of the job do nothing.",
        "10m",
        _NAMESPACE,
    ),
    Alert(
        "JobRestartsOften",
        with_queue(_OFTEN),
        Severity.WARNING,
        f"Job {_JOB} had {{{{ $value | humanize }}}} restarts by faults in an hour.",
        "Processes or workers of the job fail again and again. Each restart repeats the steps since the last save.",
        "The board of the job: *Rounds by cause* and *Process failures*. The log of the pod that fails.",
        "The same pod or node each time: replace the node. Else repair the training code.",
        labels=_NAMESPACE,
    ),
    Alert(
        "JobCoordinator",
        with_queue(_COORDINATORS),
        Severity.WARNING,
        f"Job {_JOB} has {{{{ $value }}}} coordinators in place of one.",
        "A job has no coordinator any more, or two. Without one no new round can form.",
        "The log of its workers: `coordinator_lost`, `coordinator_begun` and `stepped_down` name the pods.",
        "None: restart one worker. Two: delete the pod whose coordinator began first.",
        "The next fault ends the job.",
        "5m",
        _NAMESPACE,
    ),
    Alert(
        "JobUnsaved",
        with_queue("max by (cluster, JOB) (turnout_job_unsaved_seconds) > 4 * 3600"),
        Severity.INFO,
        f"Job {_JOB} loses {{{{ $value | humanizeDuration }}}} of work if it dies now.",
        "The job has trained for more than four hours without a save that outlives it.",
        "The board of the job: *Saves* and *Save age*. Does it save at all? [checkpoints.md](checkpoints.md)",
        "Free space on the storage or grant its rights; save more often.",
        wait="10m",
        labels=_NAMESPACE,
    ),
    Alert(
        "SavesFail",
        with_queue(f"{SAVE_FAILED.burn_condition(0.01)} or {_FEW_SAVES_FAIL}"),
        Severity.WARNING,
        f"{{{{ $value | humanize }}}} saves of job {_JOB} to {{{{ $labels.tier }}}} failed in six hours.",
        "Saves of the job fail in one tier: `memory` of the worker, `replica` in the memory of other workers, or "
        "`storage`. A save that a newer save replaced does not count. Of a job that saves rarely, three failed saves "
        "in six hours are enough, if they are more than half.",
        "The board of the job: *Saves*. The logs of its pods name failed saves (`save_failed`). `persist_failed`, "
        "`commit_failed` and `checkpoint_incomplete` are about storage, `replica_failed` and `replica_refused` about "
        "replicas, `memory_corrupt` about memory. [checkpoints.md](checkpoints.md#metrics)",
        "Storage: free space, grant the rights of the folder, repair the mount. Replica: give the workers more memory "
        "or ask for fewer replicas. Memory: replace the node.",
        "The next fault costs the job the steps since its last complete save.",
        labels=_NAMESPACE,
    ),
    Alert(
        "SaveOverdue",
        with_queue(_SAVE_OVERDUE),
        Severity.WARNING,
        f"The newest complete save of job {_JOB} in storage is older than three of its save intervals, or missing.",
        "The job asks for saves to storage, and none was completed for three times the longest of its last intervals, "
        "or none at all since its pods started. In storage, a save is complete when the manifest of its step is there.",
        "The board of the job: *Save age* and *Saves*. The log of the pod of rank 0: `checkpoint_incomplete` names the "
        "ranks whose shard is missing. Does the job still make steps? A long evaluation delays saves, too.",
        "Free space on the storage, grant its rights, or repair the worker that does not write. If the job stands "
        "still, see [TurnoutJobHung](#turnoutjobhung).",
        "The job may lose hours of work.",
        "10m",
        _NAMESPACE,
    ),
    Alert(
        "GoodputBurn",
        "turnout:queue_badput:ratio1h > 0.25 and turnout:queue_badput:ratio6h > 0.15",
        Severity.WARNING,
        "Jobs of queue {{ $labels.queue }} spend {{ $value | humanizePercentage }} of their GPU time without kept "
        "steps.",
        "A quarter of the queue's GPU time in the last hour made no step that was kept.",
        "The board of queues: *GPU time by kind*. `turnout goodput queue/NAME` sums its jobs.",
        "By kind: `wasted` and `recovery`: find the fault. `elastic_*`: longer cooldown. `save`, `restore`: faster "
        "storage. `data_stall`: more loaders. [goodput.md](goodput.md)",
        wait="15m",
    ),
    Alert(
        "LendingLoses",
        f'sum by (cluster, queue) (sum_over_time({_RATE}{{kind=~"elastic_.+"}}[1d])) * 60'
        " > sum by (cluster, queue) (increase(turnout_queue_elastic_gpu_seconds_total[1d]))",
        Severity.INFO,
        "In queue {{ $labels.queue }} resizes cost more GPU time in a day than elastic workers had.",
        "In a day, the measured cost of resizes in this queue was larger than the GPU time that elastic workers had.",
        "The board of queues: *Cost of resizes* and *Resizes*. `turnout history` of the elastic jobs.",
        "Raise `--cooldown-s`, so that a growth lasts.",
        wait="1h",
    ),
    Alert(
        "MetricsRejected",
        "increase(prometheus_target_scrapes_exceeded_sample_limit_total[15m]) > 0",
        Severity.INFO,
        "Prometheus refuses metrics of targets that have too many series.",
        "A target has more series than its limit. If it is a pod of a job, the job is not measured.",
        "The page *Targets* of Prometheus names the target and its error.",
        "Repair the exporter in the pod, or raise `monitoring.launchers.sampleLimit`.",
    ),
)
GOODPUT = Group("goodput", RECORDS, (), "60s", "of jobs whose launcher is scraped; boards rely on this interval")
LAUNCHER = Group("launcher", tuple(SAVE_FAILED.records()), ALERTS)
