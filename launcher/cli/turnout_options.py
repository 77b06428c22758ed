"""Defines options that only turnout-run has. Each is also a variable, TURNOUT_ and its name in capitals."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.dlrover_options import CHECKS
from turnout.launcher.cli.option import Option, Origin

_MEETING = (
    Option(
        "arbiter",
        "what decides who forms the next round when the coordinator is lost: a Lease, a file in --round-dir, a "
        "majority of the last world, or nothing. auto: the first of these that is available.",
        value="auto|lease|file|majority|none",
        example="none",
        sets=("rendezvous.arbiter",),
        choices=("auto", "lease", "file", "majority", "none"),
        origin=Origin.OURS,
    ),
    Option(
        "lease",
        "Lease of this job; it also records where the coordinator is.",
        value="NAMESPACE/NAME",
        example="team/bert",
        sets=("rendezvous.lease", "rendezvous.arbiter", "rendezvous.host"),
        read=value_types.name_of_lease,
        origin=Origin.OURS,
    ),
    Option(
        "round-dir",
        "directory in storage that all workers share; rounds are claimed there, and it records where the coordinator "
        "is.",
        value="DIR",
        example="/shared/bert",
        sets=("rendezvous.round_dir", "rendezvous.arbiter", "rendezvous.host"),
        read=value_types.word,
        origin=Origin.OURS,
    ),
    Option(
        "token-file",
        "file with the job's token, from a Secret. Workers prove that they know the token; it is never sent.",
        value="FILE",
        example="/run/token",
        sets=("rendezvous.token_file",),
        read=value_types.word,
        origin=Origin.OURS,
    ),
    Option(
        "insecure-no-token",
        "connect to other hosts without a token. With neither this flag nor a token, only loopback is used.",
        sets=("rendezvous.insecure",),
        origin=Origin.OURS,
    ),
    Option(
        "coordinator-only",
        "coordinate the job and run nothing: listen at --rdzv-endpoint until the job is over, and exit with 0 if it "
        "has succeeded. The other options of the rendezvous and of checks are as for the workers; --nnodes is theirs.",
        sets=("coordinates",),
        origin=Origin.OURS,
    ),
    Option(
        "wanted",
        "number of workers that the job has now; a round does not wait for more.",
        value="N",
        example="3",
        sets=("rendezvous.worker_count",),
        read=value_types.some,
        env=("NODE_NUM",),
        origin=Origin.OURS,
    ),
)

_TIMES = (
    Option(
        "last-call-s",
        "seconds that a round waits for more workers once it has its minimum; 30 by default.",
        value="S",
        example="2",
        sets=("elastic_spec.last_call_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "heartbeat-s",
        "seconds between heartbeats, in both directions; 2 by default.",
        value="S",
        example="1",
        sets=("timing.heartbeat_s", "timing.silence_s"),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "silence-s",
        "seconds without a heartbeat after which a peer is given up; five heartbeats by default.",
        value="S",
        example="4",
        sets=("timing.silence_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "drain-grace-s",
        "seconds from SIGTERM to the exit of the agent, for the last step, its save and the handover; 25 by default. "
        "Keep it below the pod's grace period.",
        value="S",
        example="50",
        sets=("timing.drain_grace_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
)

_START = (
    Option("no-fork", "start a new interpreter for each process.", sets=("start.fork",), origin=Origin.OURS),
    Option(
        "preload",
        "modules that the parent of the processes imports ahead, besides torch and what torch imports in a first step.",
        value="MODULE,...",
        example="transformers.trainer,numpy",
        sets=("start.preload",),
        read=value_types.modules,
        origin=Origin.OURS,
    ),
    Option(
        "strategy",
        "how the job trains, such as ddp or fsdp. Resizing is promised for ddp only; other strategies get a warning.",
        value="NAME",
        example="fsdp",
        sets=("strategy",),
        read=value_types.word,
        origin=Origin.OURS,
    ),
)

_HANGS = (
    Option(
        "hang-timeout",
        "seconds without a step after which a process counts as hung, unless its own step times say so earlier. It "
        "does not count in a phase that the script has named, nor before the first step.",
        value="S",
        example="120",
        sets=("hangs.at_most_s",),
        read=value_types.duration,
        env=("XPU_TIMER_HANG_TIMEOUT",),
        origin=Origin.OURS,
    ),
    Option(
        "on-hang",
        "action once a hang and its suspect are reported. ask, the default: report only; restart: restart all "
        "processes, charged like a failure; replace: the same, and the suspect's worker exits with 138.",
        value="ask|restart|replace",
        example="restart",
        sets=("hangs.act",),
        choices=("ask", "restart", "replace"),
        origin=Origin.OURS,
    ),
    Option(
        "stacks-dir",
        "directory for stack traces of a hang, to be merged by `turnout stacks`. Default: a temporary one.",
        value="DIR",
        example="/shared/stacks",
        sets=("hangs.folder",),
        read=value_types.word,
        env=("XPU_TIMER_TIMELINE_PATH",),
        origin=Origin.OURS,
    ),
)

_PLACE = (
    Option(
        "name",
        "name of this worker, kept by its replacement. Default: POD_NAME, else the host name.",
        value="NAME",
        example="bert-3",
        sets=("place.name",),
        read=value_types.word,
        env=("POD_NAME",),
        origin=Origin.OURS,
    ),
    Option(
        "host",
        "name of the machine that this worker runs on. Default: NODE_NAME, else NODE_IP, else the host name.",
        value="NAME",
        example="gpu-7",
        sets=("place.host",),
        read=value_types.word,
        env=("NODE_NAME", "NODE_IP"),
        origin=Origin.OURS,
    ),
    Option(
        "path",
        "switches above the host, from the root; ranks are assigned along them.",
        value="A/B/C",
        example="spine/leaf",
        sets=("place.path",),
        read=value_types.path,
        origin=Origin.OURS,
    ),
    Option(
        "keep-rank-order",
        "give ranks by the workers' indexes instead of by the fabric: for a job whose pods say turnout.dev/mesh, which "
        "are placed in that order already. The same for all workers.",
        sets=("elastic_spec.keeps_order",),
        origin=Origin.OURS,
    ),
    Option(
        "path-file",
        "file that holds --path, written by the downward API. Not read if --path is given.",
        value="FILE",
        example="/etc/podinfo/path",
        sets=("place.path_file",),
        read=value_types.word,
        origin=Origin.OURS,
    ),
)

_TELLING = (
    Option(
        "explain",
        "print the settings and where each comes from, and exit; no script is needed.",
        sets=("explain",),
        origin=Origin.OURS,
    ),
    Option(
        "metrics-port",
        "port that serves Prometheus metrics, 0 for any free port.",
        value="PORT",
        example="9093",
        sets=("output.metrics_port",),
        read=value_types.port,
        origin=Origin.OURS,
    ),
    Option(
        "log-format",
        "format of the agent's log.",
        value="text|json",
        example="json",
        sets=("output.json",),
        choices=("text", "json"),
        origin=Origin.OURS,
    ),
    Option("version", "print the version, and exit.", origin=Origin.OURS),
    Option("help", "print the options, and exit.", short="h", origin=Origin.OURS),
)

OURS = (*_MEETING, *_TIMES, *_START, *_HANGS, *CHECKS, *_PLACE, *_TELLING)
