"""Defines torchrun's options and what each does here. Source: docs/facts/launcher.md 1."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.option import Effect, Option
from turnout.launcher.settings import Backend

STANDALONE, NNODES, NPROC = "standalone", "nnodes", "nproc-per-node"

_WORLD = (
    Option(
        NNODES,
        "workers in the world: a number, or from MIN to MAX. With two different numbers the job is elastic.",
        value="N|MIN:MAX",
        example="2:4",
        sets=("terms.least", "terms.most", "meeting.backend"),
        read=value_types.bounds,
        also=("nnode",),
        env=("PET_NODES",),
    ),
    Option(
        NPROC,
        "training processes of this worker: a number, or one per device that is found.",
        value="N|auto|cpu|gpu|xpu",
        example="gpu",
        sets=("processes",),
        read=value_types.processes,
        env=("PET_N_PROC_PER_NODE",),
    ),
    Option(
        "max-restarts",
        "faults of processes that the whole job survives; a loss of workers is free, a newer saved step refills it.",
        value="N",
        example="3",
        sets=("terms.max_restarts",),
        read=value_types.count,
    ),
)

_MEETING = (
    Option(
        "rdzv-backend",
        "all of them mean our own coordinator. static is for a fixed number of workers; an elastic job under it gets "
        "the dynamic rendezvous. The servers of etcd and etcd-v2 are not asked.",
        value="|".join(Backend),
        example="c10d",
        sets=("meeting.backend",),
        read=Backend,
        choices=tuple(Backend),
    ),
    Option(
        "rdzv-endpoint",
        "where the first coordinator listens, port 29400 if none is given. Take a worker with much bandwidth, near "
        "the middle of the fabric.",
        value="HOST[:PORT]",
        example="leader:2940",
        sets=("meeting.host", "meeting.port"),
        read=value_types.endpoint,
    ),
    Option(
        "rdzv-id",
        "id of the job, the same for all workers. Else the first of TURNOUT_JOB, JOB_UID, ELASTIC_JOB_NAME and "
        "SLURM_JOB_ID that is set.",
        value="ID",
        example="bert",
        sets=("meeting.run",),
        read=value_types.word,
    ),
    Option(
        "rdzv-conf",
        "times and roles of the rendezvous; its keys stand in a table below.",
        value="K=V,...",
        example="join_timeout=90",
        sets=("terms.join_timeout_s",),
    ),
    Option(
        STANDALONE,
        "one worker, alone: no address is needed, those that are given are not used. An empty PET_STANDALONE means "
        "yes, as the training operator writes it.",
        sets=("meeting.standalone",),
        empty="1",
    ),
    Option(
        "node-rank",
        "index of this worker in its job; with static, 0 coordinates first. Else read from NODE_RANK, WORKER_RANK, "
        "VC_TASK_INDEX, JOB_COMPLETION_INDEX, a PyTorchJob's RANK, or the number at the end of POD_NAME.",
        value="N",
        example="1",
        sets=("place.order", "meeting.is_host"),
        read=value_types.count,
        env=("NODE_RANK", "WORKER_RANK", "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"),
    ),
    Option(
        "master-addr",
        "host of the first coordinator where no --rdzv-endpoint is given. MASTER_ADDR is read as well.",
        value="HOST",
        example="leader",
        sets=("meeting.host", "meeting.port"),
        read=value_types.host,
    ),
    Option(
        "master-port",
        "its port, 29500 if none is given. MASTER_PORT is read as well. Of a worker that is alone, the port where its "
        "processes meet.",
        value="PORT",
        example="2950",
        sets=("meeting.port",),
        read=value_types.port,
    ),
    Option(
        "local-addr",
        "address at which the others reach this worker. Else POD_IP, else that of its connection.",
        value="HOST",
        example="10.0.0.7",
        sets=("place.address",),
        read=value_types.host,
        env=("POD_IP",),
    ),
)

_COMMAND = (
    Option("module", "the script is a module, run as by python -m.", short="m", sets=("command.kind",)),
    Option("no-python", "the script is a program of any kind, run as it is.", sets=("command.kind",)),
    Option("run-path", "the script is run by runpy in the interpreter that is there.", sets=("command.kind",)),
    Option(
        "role",
        "name of the processes: ROLE_NAME, and the prefix of their lines.",
        value="NAME",
        example="trainer",
        sets=("command.role",),
        read=value_types.word,
    ),
    Option(
        "start-method",
        "spawn: a fresh interpreter for each process. fork, forkserver, or nothing: forked from a parent that has "
        "imported torch, wherever that is safe.",
        value="spawn|fork|forkserver",
        example="spawn",
        sets=("start.fork",),
        choices=("spawn", "fork", "forkserver"),
    ),
    Option(
        "numa-binding",
        "each process stays on CPUs near its device.",
        value="MODE",
        example="node",
        sets=("start.numa",),
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    Option(
        "signals-to-handle",
        "signals that are passed on to the processes; SIGTERM,SIGINT,SIGHUP,SIGQUIT if nothing is given.",
        value="SIG,...",
        example="SIGTERM,SIGUSR1",
        sets=("start.signals",),
        read=value_types.signals,
        env=("TORCHELASTIC_SIGNALS_TO_HANDLE",),
    ),
    Option(
        "shutdown-timeout",
        "seconds between a process's SIGTERM and its SIGKILL, 30 if nothing is given; at a restart as well.",
        value="S",
        example="5",
        sets=("timing.shutdown_s",),
        read=value_types.seconds,
        env=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    ),
    Option(
        "virtual-local-rank",
        "each process sees only its own device, and has LOCAL_RANK 0.",
        sets=("start.one_device",),
    ),
)

_OUTPUT = (
    Option(
        "log-dir",
        "folder of the log files.",
        value="DIR",
        example="/logs",
        sets=("output.log_dir",),
        read=value_types.word,
    ),
    Option(
        "redirects",
        "streams that go to files only: 0 none, 1 out, 2 err, 3 both, or by local rank, as in 0:3,1:1.",
        value="STD",
        example="0:3,1:1",
        sets=("output.redirects",),
        read=value_types.streams,
        short="r",
    ),
    Option(
        "tee",
        "streams that go to files and to the console, written like --redirects.",
        value="STD",
        example="3",
        sets=("output.tee",),
        read=value_types.streams,
        short="t",
    ),
    Option(
        "log-line-prefix-template",
        "what stands before each line of a tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are filled in.",
        value="TEXT",
        example="${rank}: ",
        sets=("output.prefix",),
        env=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
    ),
    Option(
        "local-ranks-filter",
        "only these local ranks are shown on the console.",
        value="R,...",
        example="0,2",
        sets=("output.local_ranks",),
        read=value_types.ranks,
    ),
    Option(
        "duplicate-stdout-filters",
        "lines of stdout with one of these words go to a file of their own as well; two commas stand for one.",
        value="WORD,...",
        example="loss,step",
        sets=("output.stdout_filters",),
        read=value_types.filters,
    ),
    Option(
        "duplicate-stderr-filters",
        "the same for stderr.",
        value="WORD,...",
        example="error",
        sets=("output.stderr_filters",),
        read=value_types.filters,
    ),
    Option(
        "print-completion",
        "print a completion script for that shell, and end.",
        value="bash|zsh|tcsh|fish|powershell",
        example="bash",
        choices=("bash", "zsh", "tcsh", "fish", "powershell"),
    ),
)

_NOTHING = (
    Option(
        "monitor-interval",
        "the end of a process is seen at once, nothing is polled.",
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
        "log files are written by --redirects and --tee alone, plug-ins of torch are not loaded.",
        value="NAME",
        example="mine",
        effect=Effect.NONE,
    ),
)

TORCHRUN = (*_WORLD, *_MEETING, *_COMMAND, *_OUTPUT, *_NOTHING)
