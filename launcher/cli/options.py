"""All command line options, one row each: names, variables, how the text is read, and what the option does here.

The options come from torchrun (docs/facts/launcher.md 1), from dlrover-run and its guide (docs/facts/dlrover.md 4,
contract DL-28 to DL-42), and from turnout-run alone. Options of turnout-run are also variables, TURNOUT_ and the name
in capitals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from turnout.launcher.cli.value_types import (
    BadValue,
    parse_bool,
    parse_bounds,
    parse_box_pairs,
    parse_count,
    parse_duration,
    parse_endpoint,
    parse_filters,
    parse_host,
    parse_lease_name,
    parse_modules,
    parse_path,
    parse_port,
    parse_positive_count,
    parse_processes,
    parse_ranks,
    parse_seconds,
    parse_signals,
    parse_streams,
    parse_text,
    parse_word,
)
from turnout.launcher.settings import Backend


class Origin(StrEnum):
    """The program that an option comes from."""

    TORCHRUN = "torchrun"
    DLROVER = "dlrover-run"
    GUIDE = "the guide"  # to DLRover with switchboxes; not upstream
    OURS = "turnout-run"


class Effect(StrEnum):
    """Says if an option has an effect here."""

    HERE = "here"
    NONE = "no effect here"


@dataclass(frozen=True, slots=True)
class Option:
    """A command line option: its names, its effect, its variables and how its value is read."""

    name: str  # long, with dashes, without the leading two; underscores are accepted too
    text: str  # what it does here, or why nothing
    value: str = ""  # the name of its value in the help, "" for a flag
    example: str = ""  # a value that is not the default
    sets: tuple[str, ...] = ()  # fields of Settings that it changes, with dots
    read: Callable[[str], object] = parse_text
    short: str = ""
    also: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # further variables, read after PET_ and the name
    empty: str = ""  # the meaning of an empty variable, "" for: not set
    choices: tuple[str, ...] = ()
    origin: Origin = Origin.TORCHRUN
    effect: Effect = Effect.HERE

    @property
    def dest(self) -> str:
        """Return its name with underscores, as in variables and fields."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """True if the option takes no value."""
        return not self.value

    @property
    def prints_page(self) -> bool:
        """True if the option prints a page instead of running a job."""
        return not self.sets and self.effect is Effect.HERE

    @property
    def strings(self) -> tuple[str, ...]:
        """Return its spellings: long names with dashes, then the short one."""
        return (*(f"--{name}" for name in (self.name, *self.also)), *((f"-{self.short}",) if self.short else ()))

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that are read if the command line lacks the option; the first one set counts.

        Empty for options that print a page, since only the command line may ask for one.
        """
        if self.prints_page:
            return ()
        ours = (f"TURNOUT_{self.dest.upper()}",) if self.origin is Origin.OURS else ()
        return (f"PET_{self.dest.upper()}", *ours, *self.env)

    def understand(self, text: str) -> object:
        """Return the value that a text has for this option; a bool for a flag. Raises BadValue for an invalid text."""
        if self.choices and text not in self.choices:
            raise BadValue(f"one of {', '.join(self.choices)} is needed")
        return parse_bool(text) if self.flag else self.read(text)


def _value(
    name: str, value: str, example: str, sets: str, read: Callable[[str], object], *, text: str, **more: Any
) -> Option:
    """Make an option that takes a value.

    value: its name in the help. example: a value that is not the default. sets: the fields of Settings that it changes,
    separated by spaces. read: parses the text. text: what the option does. more: further fields of Option.
    """
    return Option(name, text, value, example, tuple(sets.split()), read, **more)


def _choice(
    name: str, choices: str, example: str, sets: str, read: Callable[[str], object] = parse_text, *, text: str
) -> Option:
    """Make an option whose value is one of some words.

    choices: the words, separated by |. read: converts the word. example, sets, text: as in `_value`.
    """
    return Option(name, text, choices, example, tuple(sets.split()), read, choices=tuple(choices.split("|")))


def _flag(name: str, sets: str, *, text: str, **more: Any) -> Option:
    """Make an option without a value."""
    return Option(name, text, sets=tuple(sets.split()), **more)


# fmt: off
_TORCHRUN = (
    _value("nnodes", "N|MIN:MAX", "2:4", "elastic_spec.min_nodes elastic_spec.max_nodes rendezvous.backend",
        parse_bounds, also=("nnode",), env=("PET_NODES",),
        text="number of workers in the world, or a range MIN:MAX. With two different numbers the job is elastic."),
    _value("nproc-per-node", "N|auto|cpu|gpu|xpu", "gpu", "processes", parse_processes, env=("PET_N_PROC_PER_NODE",),
        text="number of training processes on this worker, or one per device found."),
    _value("max-restarts", "N", "3", "elastic_spec.max_restarts", parse_count,
        text="number of process failures that the job survives. The loss of a worker is not counted, and a newer "
             "saved step refills the budget."),
    _choice("rdzv-backend", "static|c10d|etcd|etcd-v2|turnout", "c10d", "rendezvous.backend", Backend,
        text="every value selects Turnout's own coordinator. static means a fixed number of workers; an elastic job "
             "under it gets the dynamic rendezvous. Servers of etcd and etcd-v2 are not contacted."),
    _value("rdzv-endpoint", "HOST[:PORT]", "leader:2940", "rendezvous.host rendezvous.port", parse_endpoint,
        text="address at which the first coordinator listens; the port is 29400 by default. Choose a worker with "
             "high bandwidth, near the middle of the fabric."),
    _value("rdzv-id", "ID", "bert", "rendezvous.run", parse_word,
        text="id of the job, the same for all workers. Default: the first of TURNOUT_JOB, JOB_UID, ELASTIC_JOB_NAME "
             "and SLURM_JOB_ID that is set."),
    _value("rdzv-conf", "K=V,...", "join_timeout=90", "elastic_spec.join_timeout_s", parse_text,
        text="timeouts and roles of the rendezvous; its keys are listed below."),
    _flag("standalone", "rendezvous.standalone", empty="1",
        text="run one worker without a rendezvous address; any address given is ignored. An empty PET_STANDALONE "
             "means yes, as the training operator writes it."),
    _value("node-rank", "N", "1", "place.order rendezvous.is_host", parse_count,
        env=("NODE_RANK", "WORKER_RANK", "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"),
        text="index of this worker in its job; with static, worker 0 is the first coordinator. Default: NODE_RANK, "
             "WORKER_RANK, VC_TASK_INDEX, JOB_COMPLETION_INDEX, a PyTorchJob's RANK, or the number at the end of "
             "POD_NAME."),
    _value("master-addr", "HOST", "leader", "rendezvous.host rendezvous.port", parse_host,
        text="host of the first coordinator if --rdzv-endpoint is not given. MASTER_ADDR is read as well."),
    _value("master-port", "PORT", "2950", "rendezvous.port", parse_port,
        text="port of the first coordinator, 29500 by default. MASTER_PORT is read as well. With a single worker: "
             "the port at which its processes meet."),
    _value("local-addr", "HOST", "10.0.0.7", "place.address", parse_host, env=("POD_IP",),
        text="address at which other workers reach this one. Default: POD_IP, else the local address of its "
             "connection."),
    _flag("module", "command.kind", short="m", text="run the script as a module, like python -m."),
    _flag("no-python", "command.kind", text="run the script as a program, without python."),
    _flag("run-path", "command.kind", text="run the script with runpy, in a fresh process of the agent's interpreter."),
    _value("role", "NAME", "trainer", "command.role", parse_word,
        text="name of the processes: the variable ROLE_NAME, and the prefix of their output lines."),
    _choice("start-method", "spawn|fork|forkserver", "spawn", "start.fork",
        text="spawn: start a new interpreter for each process. fork, forkserver or unset: fork from a process that "
             "has imported torch, wherever that is safe."),
    _value("numa-binding", "MODE", "node", "start.numa", parse_text,
        choices=("node", "socket", "exclusive", "core-complex"),
        text="keep each process on CPUs near its device."),
    _value("signals-to-handle", "SIG,...", "SIGTERM,SIGUSR1", "start.signals", parse_signals,
        env=("TORCHELASTIC_SIGNALS_TO_HANDLE",),
        text="signals to pass on to the processes; SIGTERM,SIGINT,SIGHUP,SIGQUIT by default."),
    _value("shutdown-timeout", "S", "5", "timing.shutdown_s", parse_seconds, env=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
        text="seconds between SIGTERM and SIGKILL of a process, also at a restart; 30 by default."),
    _flag("virtual-local-rank", "start.one_device",
        text="let each process see only its own device, with LOCAL_RANK 0."),
    _value("log-dir", "DIR", "/logs", "output.log_dir", parse_word, text="directory of the log files."),
    _value("redirects", "STD", "0:3,1:1", "output.redirects", parse_streams, short="r",
        text="streams written to files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0:3,1:1."),
    _value("tee", "STD", "3", "output.tee", parse_streams, short="t",
        text="streams written to files and to the console, in the syntax of --redirects."),
    _value("log-line-prefix-template", "TEXT", "${rank}: ", "output.prefix", parse_text,
        env=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
        text="prefix of each line of --tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced."),
    _value("local-ranks-filter", "R,...", "0,2", "output.local_ranks", parse_ranks,
        text="show only these local ranks on the console."),
    _value("duplicate-stdout-filters", "WORD,...", "loss,step", "output.stdout_filters", parse_filters,
        text="also write stdout lines that contain one of these words to a separate file; two commas stand for one."),
    _value("duplicate-stderr-filters", "WORD,...", "error", "output.stderr_filters", parse_filters,
        text="as --duplicate-stdout-filters, for stderr."),
    _choice("print-completion", "bash|zsh|tcsh|fish|powershell", "bash", "",
        text="print a completion script for that shell, and exit."),
    _value("monitor-interval", "S", "5", "", parse_seconds, effect=Effect.NONE,
        text="the end of a process is noticed at once, without polling."),
    _value("event-log-handler", "NAME", "console", "", parse_text, effect=Effect.NONE,
        text="events are in the agent's log, see --log-format."),
    _value("logs-specs", "NAME", "mine", "", parse_text, effect=Effect.NONE,
        text="log files are written by --redirects and --tee alone; torch's log plug-ins are not loaded."),
)

_DLROVER = (
    _value("node-unit", "N", "2", "elastic_spec.node_unit", parse_positive_count, also=("unit",),
        text="the size of the world is a multiple of N workers."),
    _flag("auto-config", "processes",
        text="take --nnodes from NODE_NUM and --nproc-per-node auto where they are not given. It does not turn on "
             "--network-check."),
    _flag("numa-affinity", "start.numa", text="same as --numa-binding node."),
    _flag("network-check", "checks.network",
        text="check every node before each start and restart. Nodes proven faulty exit with 138; the others train."),
    _choice("precheck", "0|1|2", "1", "checks.network", parse_count,
        text="0: no check; 1: --network-check; 2: --network-check and --comm-perf-test."),
    _flag("comm-perf-test", "checks.performance",
        text="also measure the network speed of all nodes that passed, and report it; no node is excluded by it. "
             "Requires --network-check."),
    _flag("exclude-straggler", "checks.exclude_straggler",
        text="a node that takes more than twice the mean of the others, in computing or in the network, exits with "
             "138. Requires --network-check."),
)

_GUIDE = (
    _flag("switchbox-check", "checks.switchbox",
        text="also check the links between GPUs through the switch box. Requires --network-check."),
    _value("box-pairs", "'A:B C:D'", "0:1 2:3", "checks.box_pairs", parse_box_pairs,
        text="pairs of GPU numbers for --switchbox-check; '0:1 2:4 3:5 6:7' by default."),
    _value("min-bandwidth", "MB/S", "9999", "checks.min_bandwidth_mb_per_s", parse_count,
        text="bandwidth in MB/s below which --switchbox-check calls a link broken; 10000 by default."),
    _value("min-channels", "N", "3", "checks.min_channels", parse_count,
        text="number of working pairs that --switchbox-check requires, 2 by default; a node with fewer exits with "
             "138."),
)

_TURNOUT = (
    _choice("arbiter", "auto|lease|file|majority|none", "none", "rendezvous.arbiter",
        text="what decides who forms the next round when the coordinator is lost: a Lease, a file in --round-dir, a "
             "majority of the last world, or nothing. auto: the first of these that is available."),
    _value("lease", "NAMESPACE/NAME", "team/bert", "rendezvous.lease rendezvous.arbiter rendezvous.host",
        parse_lease_name, text="Lease of this job; it also records where the coordinator is."),
    _value("round-dir", "DIR", "/shared/bert", "rendezvous.round_dir rendezvous.arbiter rendezvous.host", parse_word,
        text="directory in storage that all workers share; rounds are claimed there, and it records where the "
             "coordinator is."),
    _value("token-file", "FILE", "/run/token", "rendezvous.token_file", parse_word,
        text="file with the job's token, from a Secret. Workers prove that they know the token; it is never sent."),
    _flag("insecure-no-token", "rendezvous.insecure",
        text="connect to other hosts without a token. With neither this flag nor a token, only loopback is used."),
    _flag("coordinator-only", "coordinates",
        text="coordinate the job and run nothing: listen at --rdzv-endpoint until the job is over, and exit with 0 "
             "if it has succeeded. The other options of the rendezvous and of checks are as for the workers; "
             "--nnodes is theirs."),
    _value("wanted", "N", "3", "rendezvous.worker_count", parse_positive_count, env=("NODE_NUM",),
        text="number of workers that the job has now; a round does not wait for more."),
    _value("last-call-s", "S", "2", "elastic_spec.last_call_s", parse_seconds,
        text="seconds that a round waits for more workers once it has its minimum; 30 by default."),
    _value("heartbeat-s", "S", "1", "timing.heartbeat_s timing.silence_s", parse_seconds,
        text="seconds between heartbeats, in both directions; 2 by default."),
    _value("silence-s", "S", "4", "timing.silence_s", parse_seconds,
        text="seconds without a heartbeat after which a peer is given up; five missed heartbeats by default."),
    _value("drain-grace-s", "S", "50", "timing.drain_grace_s", parse_seconds,
        text="seconds from SIGTERM to the exit of the agent, for the last step, its save and the handover; 25 by "
             "default. Keep it below the pod's grace period."),
    _flag("no-fork", "start.fork", text="start a new interpreter for each process."),
    _value("preload", "MODULE,...", "transformers.trainer,numpy", "start.preload", parse_modules,
        text="modules that the parent of the processes imports ahead, besides torch and what torch imports in a "
             "first step."),
    _value("strategy", "NAME", "fsdp", "strategy", parse_word,
        text="how the job trains, such as ddp or fsdp. Resizing is promised for ddp only; other strategies get a "
             "warning."),
    _value("hang-timeout", "S", "120", "hangs.at_most_s", parse_duration, env=("XPU_TIMER_HANG_TIMEOUT",),
        text="seconds without a step after which a process counts as hung, unless its own step times say so earlier. "
             "It does not count in a phase that the script has named, nor before the first step."),
    _choice("on-hang", "ask|restart|replace", "restart", "hangs.act",
        text="action once a hang and its suspect are reported. ask, the default: report only; restart: restart all "
             "processes, charged like a failure; replace: the same, and the suspect's worker exits with 138."),
    _value("stacks-dir", "DIR", "/shared/stacks", "hangs.folder", parse_word, env=("XPU_TIMER_TIMELINE_PATH",),
        text="directory for stack traces of a hang, to be merged by `turnout stacks`. Default: a temporary one."),
    _flag("node-verdicts", "checks.verdicts",
        text="with --network-check, write the result of this node's check on the worker's own pod, where "
             "turnout-autoscaler --taint-nodes reads it."),
    _choice("slow-rule", "mean|median|spread", "median", "checks.limits",
        text="with --network-check, the limit for a slow node: twice the mean of the others, twice their median, or "
             "the median plus their spread; mean, the guide's rule, by default. Many slow nodes raise the mean."),
    _value("slow-compute-s", "S", "0.02", "checks.limits", parse_duration,
        text="with --network-check, a node whose matrix product takes longer is slow, whatever the others take."),
    _value("slow-collective-s", "S", "0.001", "checks.limits", parse_duration,
        text="with --network-check, an all-reduce of two nodes that takes longer is slow, whatever the others take."),
    _value("probe-meet-s", "S", "300", "checks.probing", parse_duration,
        text="with --network-check, seconds that probe processes may take to start and to connect; 120 by default."),
    _value("probe-stage-s", "S", "10", "checks.probing", parse_duration,
        text="with --network-check, seconds for each measurement, 60 by default; a process that takes longer is "
             "killed."),
    _value("probe-matmul", "N", "4096", "checks.probing", parse_positive_count,
        text="with --network-check, rows of the square matrices that a probe multiplies; 512 on a CPU and 16384 on a "
             "GPU by default."),
    _value("probe-reduce-bytes", "N", "268435456", "checks.probing", parse_positive_count,
        text="with --network-check, bytes of a probe's all-reduce; 4 MiB on a CPU and 64 MiB on a GPU by default."),
    _value("name", "NAME", "bert-3", "place.name", parse_word, env=("POD_NAME",),
        text="name of this worker, kept by its replacement. Default: POD_NAME, else the host name."),
    _value("host", "NAME", "gpu-7", "place.host", parse_word, env=("NODE_NAME", "NODE_IP"),
        text="name of the machine that this worker runs on. Default: NODE_NAME, else NODE_IP, else the host name."),
    _value("path", "A/B/C", "spine/leaf", "place.path", parse_path,
        text="switches above the host, from the root; ranks are assigned along them."),
    _flag("keep-rank-order", "elastic_spec.keeps_order",
        text="give ranks by the workers' indexes instead of by the fabric: for a job whose pods say "
             "turnout.dev/mesh, which are placed in that order already. The same for all workers."),
    _value("path-file", "FILE", "/etc/podinfo/path", "place.path_file", parse_word,
        text="file that holds --path, written by the downward API. Not read if --path is given."),
    _flag("explain", "explain", text="print the settings and where each comes from, and exit; no script is needed."),
    _value("metrics-port", "PORT", "9093", "output.metrics_port", parse_port,
        text="port that serves Prometheus metrics, 0 for any free port."),
    _choice("log-format", "text|json", "json", "output.json", text="format of the agent's log."),
    _flag("version", "", text="print the version, and exit."),
    _flag("help", "", short="h", text="print the options, and exit."),
)
# fmt: on

OPTIONS = (
    *_TORCHRUN,
    *(replace(option, origin=Origin.DLROVER) for option in _DLROVER),
    *(replace(option, origin=Origin.GUIDE) for option in _GUIDE),
    *(replace(option, origin=Origin.OURS) for option in _TURNOUT),
)
