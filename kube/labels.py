"""Every label, annotation and resource name that we read or write, written once."""

from __future__ import annotations

# Ours.
TOPOLOGY = "turnout.dev/topology"  # required | preferred
TOPOLOGY_TIER = "turnout.dev/topology-tier"  # widest tier a required gang may span, 1 = leaf
MIN_WORKERS = "turnout.dev/min-workers"
MAX_WORKERS = "turnout.dev/max-workers"
PODS_PER_HOST_MULTIPLE = "turnout.dev/pods-per-host-multiple"
MESH = "turnout.dev/mesh"  # axes of parallelism, the outermost first: dp=4,pp=4,ep=8,tp=8
BALANCED = "turnout.dev/balanced"  # true: as many pods under each leaf that is used
APART = "turnout.dev/apart"  # the level of a domain that a gang shares with no other of its set
APART_SET = "turnout.dev/apart-set"  # the set's name, in its namespace; without it, the gang's JobSet or LWS
TOGETHER = "turnout.dev/together"  # name or name/3: gangs of one namespace that say it are placed all or none
REPAIR = "turnout.dev/repair"  # wait | move | give-up, or move/300: of a gang below its min that finds no room
RANK = "turnout.dev/rank"
PRIORITY = "turnout.dev/priority"  # of a job in its namespace, 0 to 100
PAUSED = "turnout.dev/paused"  # true | grow | shrink: changes that the autoscaler leaves alone
PAUSED_UNTIL = "turnout.dev/paused-until"  # RFC 3339: the pause ends by itself
UNIT = "turnout.dev/unit"  # sizes are multiples of it, or powers-of-two
CURVE = "turnout.dev/scaling-curve"  # how fast by workers: 1:1,2:1.9,4:3.4
DEADLINE = "turnout.dev/deadline"  # RFC 3339: in a namespace, the nearest grows first and gives last
RESTART_COST = "turnout.dev/restart-cost"  # what a change of size costs the job: 60s, 2m
SWITCH_PATH = "turnout.dev/switch-path"  # of a bound pod: the switches above its host, root/.../leaf
STEP_SECONDS = "turnout.dev/step-seconds"  # of a pod: workers:seconds, as its launcher measured
MEASURED = "turnout.dev/measured-steps"  # of a job: what its pods reported, kept by us
GAINED = "turnout.dev/gained-seconds"  # what lent workers had won the job when its size last changed
COOLDOWN = "turnout.dev/cooldown"  # between two changes of a job: 600s, 10m
QUEUE = "turnout.dev/queue"  # of a job whose own fields name none
WROTE_WORKERS = "turnout.dev/wrote-workers"  # the size that the autoscaler wrote last
SUBMITTED_WORKERS = "turnout.dev/submitted-workers"  # the size that it had before the autoscaler first wrote it
RESIZED_AT = "turnout.dev/resized-at"  # when, as RFC 3339
SIZED_AT_START = "turnout.dev/sized-at-start"  # true | false: was its last change made as it started, at no cost?
SUSPENDED = "turnout.dev/suspended"  # true: of a Volcano Job, which has no field for it
WISH_WORKERS = "turnout.dev/wish-workers"  # the size that a person set by hand
SCALED_PLAN = "turnout.dev/scaled-plan"  # ours: the one of these that our job controller has carried out
SCALE_PLAN = "turnout.dev/scale-plan"  # ours: the ScalePlan by which an ElasticJob was resized last
TERM = "turnout.dev/lease-transitions"  # the leader's term in which a size was written
CONDITIONS = "turnout.dev/conditions"  # what we can do for a job, as conditions in JSON
HEADROOM = "turnout.dev/headroom-gpus"  # of a queue: kept free in it
QUEUE_NAMESPACES = "turnout.dev/namespaces"  # of a Volcano Queue: whose pods and jobs may name it, a,b; absent: all
STRICT_ORDER = "turnout.dev/strict-order"  # of a queue: true, no gang behind uses the room that the oldest waits for
NODE_VERDICT = "turnout.dev/node-verdict"  # of a pod: what its launcher's check has found of its node, JSON
NODE_RECORD = "turnout.dev/node-record"  # of a node: why it is tainted, since when and until when, JSON
FAULTY = "turnout.dev/faulty"  # the taint of a node that a check has proven faulty
GUARDED = "turnout.dev/guarded-verdicts"  # of a namespace: true, a pod's verdict is written by that pod alone
PLACEMENT_GATE = "turnout.dev/placement"  # the scheduling gate of a pod whose gang waits for a plan
GATES = "turnout.dev/gates"  # of a namespace: true, pods of gangs get our gate as they are created
FIELD_MANAGER_NOMINATOR = "turnout-nominator"

# Volcano.
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_GROUP_NEW = "scheduling.volcano.sh/group-name"
VOLCANO_TASK_INDEX = "volcano.sh/task-index"
VOLCANO_TASK_SPEC = "volcano.sh/task-spec"
VOLCANO_COOLDOWN = "volcano.sh/cooldown-time"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_JOB = "volcano.sh/job-name"
VOLCANO_TASK_PRIORITY = "volcano.sh/task-priority"
VOLCANO_PREEMPTABLE = "volcano.sh/preemptable"

# Kueue.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_BOOST = "kueue.x-k8s.io/priority-boost"
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"

# koordinator.
KOORD_QUOTA = "quota.scheduling.koordinator.sh/name"
KOORD_NAME = "gang.scheduling.koordinator.sh/name"
KOORD_MIN = "gang.scheduling.koordinator.sh/min-available"
KOORD_TOTAL = "gang.scheduling.koordinator.sh/total-number"
KOORD_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"

# scheduler-plugins.
PLUGINS_POD_GROUP = "scheduling.x-k8s.io/pod-group"

# KAI.
KAI_GROUP = "pod-group-name"  # its pod-grouper writes it on the pods that it takes
KAI_QUEUE = "kai.scheduler/queue"

# LeaderWorkerSet.
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"

# JobSet.
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"

# Plain indexed pods of one owner.
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
STATEFUL_INDEX = "apps.kubernetes.io/pod-index"
TRAINING_JOB = "training.kubeflow.org/job-name"
TRAINING_INDEX = "training.kubeflow.org/replica-index"
TRAINING_TYPE = "training.kubeflow.org/replica-type"

# cluster-autoscaler.
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

HOSTNAME = "kubernetes.io/hostname"
GPU_RESOURCES = ("nvidia.com/gpu", "metax-tech.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

PREFIX = "turnout.dev"  # of the names that are ours
NAMES = frozenset(name for name in list(globals().values()) if isinstance(name, str) and name.startswith(f"{PREFIX}/"))
