"""Every label, annotation and resource name that we read or write, written once."""

from __future__ import annotations

# Ours.
# pod: required, preferred (default), unconstrained or none: how near to one another the gang's pods must be
TOPOLOGY = "turnout.dev/topology"
# pod: the widest level that a required gang may span: a tier, 1 = leaf; a node label's key; or a word such as
# rack
TOPOLOGY_TIER = "turnout.dev/topology-tier"
# pod, job: how many must start together, where no PodGroup says so; of a job: the autoscaler never shrinks it
# below
MIN_WORKERS = "turnout.dev/min-workers"
# pod, job: how many the job may grow to; room for them is preferred in the same place
MAX_WORKERS = "turnout.dev/max-workers"
# pod: the pods of the gang on one host come in multiples of this number
PODS_PER_HOST_MULTIPLE = "turnout.dev/pods-per-host-multiple"
MESH = "turnout.dev/mesh"  # pod: axes of parallelism, the outermost first: dp=4,pp=4,ep=8,tp=8
BALANCED = "turnout.dev/balanced"  # pod: true: as many pods under each leaf that is used
APART = "turnout.dev/apart"  # pod: the level of a domain that the gang shares with no other gang of its set
# pod: the name of that set, in its namespace; without it, the gang's JobSet or LeaderWorkerSet
APART_SET = "turnout.dev/apart-set"
# pod: name or name/3: gangs of one namespace with the same name are placed all or none
TOGETHER = "turnout.dev/together"
# pod: wait, move or give-up, or move/300 (seconds): what is done with a gang below its min that finds no room
REPAIR = "turnout.dev/repair"
# pod: the pod's rank; a label works too. Without it: its index label, else the number at the end of its name
RANK = "turnout.dev/rank"
# job: 0 to 100: the higher starts first and gives last, among the jobs of its namespace
PRIORITY = "turnout.dev/priority"
# pod, label: written by turnout-controller, the kind of its job where two API groups have a kind of the same name
JOB_KIND = "turnout.dev/job-kind"
PAUSED = "turnout.dev/paused"  # job: true, grow or shrink: the changes of size that the autoscaler does not make
PAUSED_UNTIL = "turnout.dev/paused-until"  # job: a time, RFC 3339: the pause ends by itself
UNIT = "turnout.dev/unit"  # job: sizes are multiples of this number, or powers-of-two
CURVE = "turnout.dev/scaling-curve"  # job: how fast the job is by workers: 1:1,2:1.9,4:3.4
# job: a time, RFC 3339: in a namespace, the job with the nearest deadline grows first and gives last
DEADLINE = "turnout.dev/deadline"
RESTART_COST = "turnout.dev/restart-cost"  # job: the time that a change of size costs the job: 60s, 2m
# pod: written by turnout-nominator on a bound pod: the switches above its host, root/.../leaf
SWITCH_PATH = "turnout.dev/switch-path"
STEP_SECONDS = "turnout.dev/step-seconds"  # pod: workers:seconds of a step, as measured by the job itself
# job: written by turnout-autoscaler: what the job's pods reported of their steps
MEASURED = "turnout.dev/measured-steps"
# job: written by turnout-autoscaler: what lent workers had gained the job when its size last changed
GAINED = "turnout.dev/gained-seconds"
COOLDOWN = "turnout.dev/cooldown"  # job: the time between two changes of its size: 600s, 10m
QUEUE = "turnout.dev/queue"  # job: the queue of a job whose own fields name none
WROTE_WORKERS = "turnout.dev/wrote-workers"  # job: written by turnout-autoscaler: the size that it wrote last
# job: written by turnout-autoscaler: the size before its first change
SUBMITTED_WORKERS = "turnout.dev/submitted-workers"
# PodGroup of Kubernetes: written by turnout-autoscaler: the minCount that its owner stated, while ours is lower
STATED_MIN_COUNT = "turnout.dev/stated-min-count"
# PodGroup of Kubernetes: written by turnout-autoscaler: the minCount that it wrote last
WROTE_MIN_COUNT = "turnout.dev/wrote-min-count"
RESIZED_AT = "turnout.dev/resized-at"  # job: written by turnout-autoscaler: the time of its last change, RFC 3339
# job: written by turnout-autoscaler: true if its last change was made as the job started, at no cost
SIZED_AT_START = "turnout.dev/sized-at-start"
SUSPENDED = "turnout.dev/suspended"  # VolcanoJob: true: the job is suspended; a Volcano Job has no field for it
# job: written by turnout-autoscaler: the size that a person set by hand; it is the max until it is removed
WISH_WORKERS = "turnout.dev/wish-workers"
# ElasticJob: written by turnout-controller: the ScalePlan that it has carried out last
SCALED_PLAN = "turnout.dev/scaled-plan"
# ElasticJob: written by turnout-autoscaler: the ScalePlan by which the job was resized last
SCALE_PLAN = "turnout.dev/scale-plan"
TERM = "turnout.dev/lease-transitions"  # job: written by turnout-autoscaler: the term of the leader that wrote a size
# job: written by turnout-autoscaler: what it can do for the job, as conditions in JSON
CONDITIONS = "turnout.dev/conditions"
HEADROOM = "turnout.dev/headroom-gpus"  # queue: the number of GPUs that are kept free in it
# Volcano Queue: the namespaces whose pods and jobs may name it: a,b; without it: all
QUEUE_NAMESPACES = "turnout.dev/namespaces"
# queue: true: no gang behind the oldest one uses the room that the oldest one waits for
STRICT_ORDER = "turnout.dev/strict-order"
# pod: written by turnout-run: what its check found about the pod's node, JSON
NODE_VERDICT = "turnout.dev/node-verdict"
# node: written by turnout-autoscaler: why the node is tainted, since when and until when, JSON
NODE_RECORD = "turnout.dev/node-record"
FAULTY = "turnout.dev/faulty"  # node, taint: the taint of a node that a check has proven faulty
# namespace, label: true: its accounts may change nothing of pods but their own reports on nodes; false: a
# report is not guarded by the admission policy there
GUARDED = "turnout.dev/guarded-verdicts"
PLACEMENT_GATE = "turnout.dev/placement"  # pod, scheduling gate: the pod waits until its gang has a plan
GATES = "turnout.dev/gates"  # namespace, label: true: pods of gangs get the scheduling gate as they are created
FIELD_MANAGER_NOMINATOR = "turnout-nominator"

# Volcano.
VOLCANO_GROUP = "scheduling.k8s.io/group-name"  # pod: the PodGroup that it belongs to
VOLCANO_GROUP_NEW = "scheduling.volcano.sh/group-name"  # pod: the same, in newer versions
VOLCANO_TASK_INDEX = "volcano.sh/task-index"  # pod, label: its index in its task
VOLCANO_TASK_SPEC = "volcano.sh/task-spec"  # pod, label or annotation: the name of its task
VOLCANO_COOLDOWN = "volcano.sh/cooldown-time"  # job: the time between two changes of its size, as turnout.dev/cooldown
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"  # pod, job: its queue
VOLCANO_JOB = "volcano.sh/job-name"  # pod, label: its Volcano Job
VOLCANO_TASK_PRIORITY = "volcano.sh/task-priority"  # pod: written by turnout-autoscaler, which pods may go first
VOLCANO_PREEMPTABLE = "volcano.sh/preemptable"  # pod: written by turnout-autoscaler, whether it may be preempted

# Kueue.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"  # job, label: its LocalQueue
# job: a change of its priority in Kueue; such a job may grow although its ClusterQueue preempts its own jobs
KUEUE_BOOST = "kueue.x-k8s.io/priority-boost"
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"  # job: Kueue admits changes of its size

# koordinator.
KOORD_QUOTA = "quota.scheduling.koordinator.sh/name"  # pod, job, label: its ElasticQuota
KOORD_NAME = "gang.scheduling.koordinator.sh/name"  # pod: the name of its gang
KOORD_MIN = "gang.scheduling.koordinator.sh/min-available"  # pod: how many must start together
KOORD_TOTAL = "gang.scheduling.koordinator.sh/total-number"  # pod: how many the gang has
KOORD_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"  # pod, label: its PodGroup

# scheduler-plugins.
PLUGINS_POD_GROUP = "scheduling.x-k8s.io/pod-group"  # pod, label: its PodGroup

# KAI.
KAI_GROUP = "pod-group-name"  # pod: its PodGroup, written by KAI's pod-grouper
KAI_QUEUE = "kai.scheduler/queue"  # pod, label: its queue

# LeaderWorkerSet.
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"  # pod, label: its LeaderWorkerSet
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"  # pod, label: the index of its group
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"  # pod, label: its index in the group
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"  # pod: the size of the group

# JobSet.
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"  # pod, label: its JobSet

# Plain indexed pods of one owner.
JOB_INDEX = "batch.kubernetes.io/job-completion-index"  # pod, label: its index in an Indexed Job
STATEFUL_INDEX = "apps.kubernetes.io/pod-index"  # pod, label: its index in a StatefulSet
TRAINING_JOB = "training.kubeflow.org/job-name"  # pod, label: its training job
TRAINING_OPERATOR = "training.kubeflow.org/operator-name"  # pod, label: the controller of its training job
TRAINING_INDEX = "training.kubeflow.org/replica-index"  # pod, label: its index in its role
TRAINING_TYPE = "training.kubeflow.org/replica-type"  # pod, label: its role

# cluster-autoscaler.
# pod: written by turnout-autoscaler, whether cluster-autoscaler may evict it
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

# Kubernetes.
HOSTNAME = "kubernetes.io/hostname"  # node, label: the host's name
GPU_RESOURCES = ("nvidia.com/gpu", "metax-tech.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
TAINT_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"  # node, taint: the node is cordoned

PREFIX = "turnout.dev"  # of the names that are ours
NAMES = frozenset(name for name in list(globals().values()) if isinstance(name, str) and name.startswith(f"{PREFIX}/"))
