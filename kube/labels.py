"""Every label, annotation and resource name that we read or write, written once."""

from __future__ import annotations

# Ours.
TOPOLOGY = "turnout.dev/topology"  # required | preferred
TOPOLOGY_TIER = "turnout.dev/topology-tier"  # widest tier a required gang may span, 1 = leaf
MIN_WORKERS = "turnout.dev/min-workers"
MAX_WORKERS = "turnout.dev/max-workers"
PODS_PER_HOST_MULTIPLE = "turnout.dev/pods-per-host-multiple"
RANK = "turnout.dev/rank"
FIELD_MANAGER_NOMINATOR = "turnout-nominator"

# Volcano.
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_GROUP_NEW = "scheduling.volcano.sh/group-name"
VOLCANO_TASK_INDEX = "volcano.sh/task-index"
VOLCANO_TASK_SPEC = "volcano.sh/task-spec"

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
