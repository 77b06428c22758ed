"""Every label, annotation and resource name that we read or write, written once."""

from __future__ import annotations

# Ours.
TOPOLOGY = "turnout.dev/topology"  # required | preferred
TOPOLOGY_TIER = "turnout.dev/topology-tier"  # widest tier a required gang may span, 1 = leaf
MIN_WORKERS = "turnout.dev/min-workers"
MAX_WORKERS = "turnout.dev/max-workers"
PODS_PER_HOST_MULTIPLE = "turnout.dev/pods-per-host-multiple"
RANK = "turnout.dev/rank"
PRIORITY = "turnout.dev/priority"  # of a job in its queue, 0 to 100
PAUSED = "turnout.dev/paused"  # true | grow | shrink: changes that the autoscaler leaves alone
COOLDOWN = "turnout.dev/cooldown"  # between two changes of a job: 600s, 10m
QUEUE = "turnout.dev/queue"  # of a job whose own fields name none
WROTE_WORKERS = "turnout.dev/wrote-workers"  # the size that the autoscaler wrote last
RESIZED_AT = "turnout.dev/resized-at"  # when, as RFC 3339
WISH_WORKERS = "turnout.dev/wish-workers"  # the size that a person set by hand
FIELD_MANAGER_NOMINATOR = "turnout-nominator"

# Volcano.
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_GROUP_NEW = "scheduling.volcano.sh/group-name"
VOLCANO_TASK_INDEX = "volcano.sh/task-index"
VOLCANO_TASK_SPEC = "volcano.sh/task-spec"
VOLCANO_COOLDOWN = "volcano.sh/cooldown-time"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_JOB = "volcano.sh/job-name"

# Kueue.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"

# koordinator.
KOORD_NAME = "gang.scheduling.koordinator.sh/name"
KOORD_MIN = "gang.scheduling.koordinator.sh/min-available"
KOORD_TOTAL = "gang.scheduling.koordinator.sh/total-number"
KOORD_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"

# scheduler-plugins.
PLUGINS_POD_GROUP = "scheduling.x-k8s.io/pod-group"

# Plain indexed pods of one owner.
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
STATEFUL_INDEX = "apps.kubernetes.io/pod-index"
TRAINING_JOB = "training.kubeflow.org/job-name"
TRAINING_INDEX = "training.kubeflow.org/replica-index"
TRAINING_TYPE = "training.kubeflow.org/replica-type"

HOSTNAME = "kubernetes.io/hostname"
GPU_RESOURCES = ("nvidia.com/gpu", "metax-tech.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
