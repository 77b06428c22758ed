"""Defines options that only turnout-run has. Each is also a variable, TURNOUT_ and its name in capitals."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.dlrover_options import CHECKS
from turnout.launcher.cli.option import Option, Origin

_MEETING = (
    Option(
        "arbiter",
        "who settles the next round when the coordinator is lost: a Lease, a file in --round-dir, more than half of "
        "the last world, or nobody. auto: the first of these that is there.",
        value="auto|lease|file|majority|none",
        example="none",
        sets=("meeting.arbiter",),
        choices=("auto", "lease", "file", "majority", "none"),
        origin=Origin.OURS,
    ),
    Option(
        "lease",
        "the Lease of this job; it tells where the coordinator is, too.",
        value="NAMESPACE/NAME",
        example="team/bert",
        sets=("meeting.lease", "meeting.arbiter", "meeting.host"),
        read=value_types.name_of_lease,
        origin=Origin.OURS,
    ),
    Option(
        "round-dir",
        "folder in storage that all workers share; rounds are claimed there, and it tells where the coordinator is.",
        value="DIR",
        example="/shared/bert",
        sets=("meeting.round_dir", "meeting.arbiter", "meeting.host"),
        read=value_types.word,
        origin=Origin.OURS,
    ),
    Option(
        "token-file",
        "file with the job's token, from a Secret. Its knowledge is proven, it is never sent.",
        value="FILE",
        example="/run/token",
        sets=("meeting.token_file",),
        read=value_types.word,
        origin=Origin.OURS,
    ),
    Option(
        "insecure-no-token",
        "talk to other hosts without a token. Without it and without a token, only loopback.",
        sets=("meeting.insecure",),
        origin=Origin.OURS,
    ),
    Option(
        "wanted",
        "how many workers the job has now: no more than that are waited for.",
        value="N",
        example="3",
        sets=("meeting.wanted",),
        read=value_types.some,
        env=("NODE_NUM",),
        origin=Origin.OURS,
    ),
)

_TIMES = (
    Option(
        "last-call-s",
        "how long a round waits for more once it has its least, 30 if nothing is given.",
        value="S",
        example="2",
        sets=("terms.last_call_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "heartbeat-s",
        "how often both sides of a connection are heard, 2 if nothing is given.",
        value="S",
        example="1",
        sets=("timing.heartbeat_s", "timing.silence_s"),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "silence-s",
        "after so long without one, the other side is given up; five heartbeats if nothing is given.",
        value="S",
        example="4",
        sets=("timing.silence_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
    Option(
        "drain-grace-s",
        "from SIGTERM to the end: stop step, save, goodbye; 25 if nothing is given. Less than the pod's grace period.",
        value="S",
        example="50",
        sets=("timing.drain_grace_s",),
        read=value_types.seconds,
        origin=Origin.OURS,
    ),
)

_START = (
    Option("no-fork", "a fresh interpreter for each process.", sets=("start.fork",), origin=Origin.OURS),
    Option(
        "preload",
        "modules that the parent of processes imports ahead, these alone. If nothing is given: torch, and what the "
        "script itself has imported from site-packages in its first life.",
        value="MODULE,...",
        example="torch,numpy",
        sets=("start.preload", "start.learn"),
        read=value_types.modules,
        origin=Origin.OURS,
    ),
    Option(
        "strategy",
        "how the job trains, such as ddp or fsdp. Resizing is promised for ddp only; others are warned.",
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
        "seconds without a step after which a process hangs, if its own steps do not say so earlier. Not in a phase "
        "that the script has named, and not before its first step.",
        value="S",
        example="120",
        sets=("hangs.at_most_s",),
        read=value_types.duration,
        env=("XPU_TIMER_HANG_TIMEOUT",),
        origin=Origin.OURS,
    ),
    Option(
        "on-hang",
        "what becomes of a round in which a process hangs, once it is told who stands apart: nothing, a person is "
        "asked; all restart, charged like a failure; or the same, and that worker leaves with 138. ask if nothing is "
        "given.",
        value="ask|restart|replace",
        example="restart",
        sets=("hangs.act",),
        choices=("ask", "restart", "replace"),
        origin=Origin.OURS,
    ),
    Option(
        "stacks-dir",
        "folder for the stacks of processes when one hangs, which `turnout stacks` merges. Else a temporary one.",
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
        "of this worker, kept by its replacement. Else POD_NAME, else the host's name.",
        value="NAME",
        example="bert-3",
        sets=("place.name",),
        read=value_types.word,
        env=("POD_NAME",),
        origin=Origin.OURS,
    ),
    Option(
        "host",
        "the machine that it runs on. Else NODE_NAME, else NODE_IP, else the host's name.",
        value="NAME",
        example="gpu-7",
        sets=("place.host",),
        read=value_types.word,
        env=("NODE_NAME", "NODE_IP"),
        origin=Origin.OURS,
    ),
    Option(
        "path",
        "switches above that host, from the root: ranks follow them.",
        value="A/B/C",
        example="spine/leaf",
        sets=("place.path",),
        read=value_types.path,
        origin=Origin.OURS,
    ),
    Option(
        "path-file",
        "file that holds them, of the downward API. Not read where --path is given.",
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
        "tell what was understood and from where, and end; no script is needed.",
        sets=("explain",),
        origin=Origin.OURS,
    ),
    Option(
        "metrics-port",
        "serve Prometheus metrics there, 0 for any free port.",
        value="PORT",
        example="9093",
        sets=("output.metrics_port",),
        read=value_types.port,
        origin=Origin.OURS,
    ),
    Option(
        "log-format",
        "of the agent's own lines.",
        value="text|json",
        example="json",
        sets=("output.json",),
        choices=("text", "json"),
        origin=Origin.OURS,
    ),
    Option("help", "print the options, and end.", short="h", origin=Origin.OURS),
)

OURS = (*_MEETING, *_TIMES, *_START, *_HANGS, *CHECKS, *_PLACE, *_TELLING)
