"""Defines torchrun's options and what each does here. Source: docs/facts/launcher.md 1."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.option import Effect, Option
from turnout.launcher.settings import Backend

STANDALONE, NNODES, NPROC = "standalone", "nnodes", "nproc-per-node"

_WORLD = (
    Option(
        NNODES,
        "number of workers in the world, or a range MIN:MAX. With two different numbers the job is elastic.",
        value="N|MIN:MAX",
        example="2:4",
        sets=("elastic_spec.min_nodes", "elastic_spec.max_nodes", "rendezvous.backend"),
        read=value_types.bounds,
        also=("nnode",),
        env=("PET_NODES",),
    ),
    Option(
        NPROC,
        "number of training processes on this worker, or one per device found.",
        value="N|auto|cpu|gpu|xpu",
        example="gpu",
        sets=("processes",),
        read=value_types.processes,
        env=("PET_N_PROC_PER_NODE",),
    ),
    Option(
        "max-restarts",
        "number of process failures that the job survives. The loss of a worker is not counted, and a newer saved "
        "step refills the budget.",
        value="N",
        example="3",
        sets=("elastic_spec.max_restarts",),
        read=value_types.count,
    ),
)

_MEETING = (
    Option(
        "rdzv-backend",
        "every value selects Turnout's own coordinator. static means a fixed number of workers; an elastic job under "
        "it gets the dynamic rendezvous. Servers of etcd and etcd-v2 are not contacted.",
        value="|".join(Backend),
        example="c10d",
        sets=("rendezvous.backend",),
        read=Backend,
        choices=tuple(Backend),
    ),
    Option(
        "rdzv-endpoint",
        "address at which the first coordinator listens; the port is 29400 by default. Choose a worker with high "
        "bandwidth, near the middle of the fabric.",
        value="HOST[:PORT]",
        example="leader:2940",
        sets=("rendezvous.host", "rendezvous.port"),
        read=value_types.endpoint,
    ),
    Option(
        "rdzv-id",
        "id of the job, the same for all workers. Default: the first of TURNOUT_JOB, JOB_UID, ELASTIC_JOB_NAME and "
        "SLURM_JOB_ID that is set.",
        value="ID",
        example="bert",
        sets=("rendezvous.run",),
        read=value_types.word,
    ),
    Option(
        "rdzv-conf",
        "timeouts and roles of the rendezvous; its keys are listed below.",
        value="K=V,...",
        example="join_timeout=90",
        sets=("elastic_spec.join_timeout_s",),
    ),
    Option(
        STANDALONE,
        "run one worker without a rendezvous address; any address given is ignored. An empty PET_STANDALONE means yes, "
        "as the training operator writes it.",
        sets=("rendezvous.standalone",),
        empty="1",
    ),
    Option(
        "node-rank",
        "index of this worker in its job; with static, worker 0 is the first coordinator. Default: NODE_RANK, "
        "WORKER_RANK, VC_TASK_INDEX, JOB_COMPLETION_INDEX, a PyTorchJob's RANK, or the number at the end of POD_NAME.",
        value="N",
        example="1",
        sets=("place.order", "rendezvous.is_host"),
        read=value_types.count,
        env=("NODE_RANK", "WORKER_RANK", "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"),
    ),
    Option(
        "master-addr",
        "host of the first coordinator if --rdzv-endpoint is not given. MASTER_ADDR is read as well.",
        value="HOST",
        example="leader",
        sets=("rendezvous.host", "rendezvous.port"),
        read=value_types.host,
    ),
    Option(
        "master-port",
        "port of the first coordinator, 29500 by default. MASTER_PORT is read as well. With a single worker: the port "
        "at which its processes meet.",
        value="PORT",
        example="2950",
        sets=("rendezvous.port",),
        read=value_types.port,
    ),
    Option(
        "local-addr",
        "address at which other workers reach this one. Default: POD_IP, else the local address of its connection.",
        value="HOST",
        example="10.0.0.7",
        sets=("place.address",),
        read=value_types.host,
        env=("POD_IP",),
    ),
)

_COMMAND = (
    Option("module", "run the script as a module, like python -m.", short="m", sets=("command.kind",)),
    Option("no-python", "run the script as a program, without python.", sets=("command.kind",)),
    Option("run-path", "run the script with runpy in the current interpreter.", sets=("command.kind",)),
    Option(
        "role",
        "name of the processes: the variable ROLE_NAME, and the prefix of their output lines.",
        value="NAME",
        example="trainer",
        sets=("command.role",),
        read=value_types.word,
    ),
    Option(
        "start-method",
        "spawn: start a new interpreter for each process. fork, forkserver or unset: fork from a process that has "
        "imported torch, wherever that is safe.",
        value="spawn|fork|forkserver",
        example="spawn",
        sets=("start.fork",),
        choices=("spawn", "fork", "forkserver"),
    ),
    Option(
        "numa-binding",
        "keep each process on CPUs near its device.",
        value="MODE",
        example="node",
        sets=("start.numa",),
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    Option(
        "signals-to-handle",
        "signals to pass on to the processes; SIGTERM,SIGINT,SIGHUP,SIGQUIT by default.",
        value="SIG,...",
        example="SIGTERM,SIGUSR1",
        sets=("start.signals",),
        read=value_types.signals,
        env=("TORCHELASTIC_SIGNALS_TO_HANDLE",),
    ),
    Option(
        "shutdown-timeout",
        "seconds between SIGTERM and SIGKILL of a process, also at a restart; 30 by default.",
        value="S",
        example="5",
        sets=("timing.shutdown_s",),
        read=value_types.seconds,
        env=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    ),
    Option(
        "virtual-local-rank",
        "let each process see only its own device, with LOCAL_RANK 0.",
        sets=("start.one_device",),
    ),
)

_OUTPUT = (
    Option(
        "log-dir",
        "directory of the log files.",
        value="DIR",
        example="/logs",
        sets=("output.log_dir",),
        read=value_types.word,
    ),
    Option(
        "redirects",
        "streams written to files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:1.",
        value="STD",
        example="0:3,1:1",
        sets=("output.redirects",),
        read=value_types.streams,
        short="r",
    ),
    Option(
        "tee",
        "streams written to files and to the console, in the syntax of --redirects.",
        value="STD",
        example="3",
        sets=("output.tee",),
        read=value_types.streams,
        short="t",
    ),
    Option(
        "log-line-prefix-template",
        "prefix of each line of --tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced.",
        value="TEXT",
        example="${rank}: ",
        sets=("output.prefix",),
        env=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
    ),
    Option(
        "local-ranks-filter",
        "show only these local ranks on the console.",
        value="R,...",
        example="0,2",
        sets=("output.local_ranks",),
        read=value_types.ranks,
    ),
    Option(
        "duplicate-stdout-filters",
        "also write stdout lines that contain one of these words to a separate file; two commas stand for one.",
        value="WORD,...",
        example="loss,step",
        sets=("output.stdout_filters",),
        read=value_types.filters,
    ),
    Option(
        "duplicate-stderr-filters",
        "as --duplicate-stdout-filters, for stderr.",
        value="WORD,...",
        example="error",
        sets=("output.stderr_filters",),
        read=value_types.filters,
    ),
    Option(
        "print-completion",
        "print a completion script for that shell, and exit.",
        value="bash|zsh|tcsh|fish|powershell",
        example="bash",
        choices=("bash", "zsh", "tcsh", "fish", "powershell"),
    ),
)

_NOTHING = (
    Option(
        "monitor-interval",
        "the end of a process is noticed at once, without polling.",
        value="S",
        example="5",
        read=value_types.seconds,
        effect=Effect.NONE,
    ),
    Option(
        "event-log-handler",
        "events are in the agent's log, see --log-format.",
        value="NAME",
        example="console",
        effect=Effect.NONE,
    ),
    Option(
        "logs-specs",
        "log files are written by --redirects and --tee alone; torch's log plug-ins are not loaded.",
        value="NAME",
        example="mine",
        effect=Effect.NONE,
    ),
)

TORCHRUN = (*_WORLD, *_MEETING, *_COMMAND, *_OUTPUT, *_NOTHING)
