"""What one agent is told: its command, its job's terms, where they meet, where it stands. Checked when built.

How a command line or the environment says so is in options/. What needs a look at the machine stays a word here: how
many GPUs there are, the host's name, a token's text. The shell finds those out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntFlag, StrEnum
from math import isfinite

from turnout.launcher.errors import BadSettings
from turnout.launcher.health.checks import Checks
from turnout.launcher.health.hangs import Hangs
from turnout.launcher.model import MOST_PROCESSES, Terms
from turnout.launcher.wire import PORT

MOST_PATH = 16  # switches above a host, as a Member takes them


class Kind(StrEnum):
    """What the command is: how a process runs it."""

    SCRIPT = "script"
    MODULE = "module"
    PROGRAM = "program"  # run as it is, without Python
    RUN_PATH = "run_path"  # in the interpreter that is already there


class Devices(StrEnum):
    """How many processes, where a number is not given: one per device of that kind."""

    AUTO = "auto"  # accelerators if there are any, else CPUs
    CPU = "cpu"
    GPU = "gpu"
    XPU = "xpu"


class Backend(StrEnum):
    """How torchrun's user asks for a rendezvous. All of them are served by our own coordinator."""

    STATIC = "static"
    C10D = "c10d"
    ETCD = "etcd"
    ETCD_V2 = "etcd-v2"
    TURNOUT = "turnout"


class ArbiterKind(StrEnum):
    """Who settles which round is the next when the coordinator is lost."""

    LEASE = "lease"
    FILE = "file"
    MAJORITY = "majority"
    NONE = "none"


class Std(IntFlag):
    """Output streams of a process."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class Warned(StrEnum):
    """What a note is about. The list is closed."""

    NO_EFFECT = "no effect here"
    NO_ADDRESS = "no address"  # several workers that were told nowhere to meet
    OTHER_BACKEND = "dynamic rendezvous"  # static cannot be resized
    RESIZING = "resizing"  # promised for DDP only


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell the user once, when the agent starts. about: an option or variable, as the user wrote it."""

    about: str
    word: Warned
    why: str

    def __str__(self) -> str:
        return f"{self.about}: {self.word.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams are taken, the same for all processes or by local rank. A rank that is not named: none."""

    every: Std = Std.NONE
    by_rank: tuple[tuple[int, Std], ...] | None = None

    def of(self, local_rank: int) -> Std:
        """Of one process."""
        return self.every if self.by_rank is None else dict(self.by_rank).get(local_rank, Std.NONE)


@dataclass(frozen=True, slots=True)
class Command:
    """What every process runs. python: the interpreter, "" for the agent's own. role: ROLE_NAME of the processes."""

    program: str = ""
    arguments: tuple[str, ...] = ()
    kind: Kind = Kind.SCRIPT
    python: str = ""
    role: str = "default"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and under which name the members of a job find each other, and who decides among them.

    run: id of the job, the same for all members; "" of one that is alone: it makes its own. host, port: where the first
    coordinator listens; "" when only the arbiter's record tells, port 0 for any. is_host: this member is that first
    coordinator, or is not; None: who finds the address to be its own. store_port: of a worker that is alone, where its
    processes meet, 0 for any. wanted: how many workers the job has now, None
    when nobody said. lease: namespace/name. round_dir: a folder that all members share. token_file: holds the job's
    token, "" for none; insecure: other hosts are talked to without one.
    """

    run: str = "none"
    backend: Backend = Backend.STATIC
    host: str = "127.0.0.1"
    port: int = PORT
    is_host: bool | None = None
    store_port: int = 0
    standalone: bool = False
    wanted: int | None = None
    arbiter: ArbiterKind = ArbiterKind.MAJORITY
    lease: str = ""
    round_dir: str = ""
    token_file: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        for port in (self.port, self.store_port):
            if not 0 <= port < 65_536:
                raise BadSettings(f"port {port} is outside 0 to 65535")
        if self.wanted is not None and self.wanted < 1:
            raise BadSettings(f"wanted is {self.wanted}: at least 1 worker is needed")
        if self.lease and (self.lease.count("/") != 1 or not all(self.lease.split("/"))):
            raise BadSettings(f"the lease is {self.lease!r}: it must be namespace/name")
        if self.arbiter is ArbiterKind.LEASE and not self.lease:
            raise BadSettings("the arbiter lease needs --lease namespace/name")
        if self.arbiter is ArbiterKind.FILE and not self.round_dir:
            raise BadSettings("the arbiter file needs --round-dir, a folder that all workers share")
        if not self.host and self.arbiter not in (ArbiterKind.LEASE, ArbiterKind.FILE):
            raise BadSettings("no address to meet at: give --rdzv-endpoint, --lease or --round-dir")


@dataclass(frozen=True, slots=True)
class Place:
    """Who this worker is and where it stands. "" and None: the shell finds out, or nobody knows.

    name: kept by the worker's replacement. host: the machine it runs on. address: where others reach it. path: switches
    above the host from the root; path_file: a file that holds them, read when path is (). order: the worker's index
    where the job numbers its workers. It is a hint: not every job gives each worker its own.
    """

    name: str = ""
    host: str = ""
    address: str = ""
    path: tuple[str, ...] = ()
    path_file: str = ""
    order: int | None = None

    def __post_init__(self) -> None:
        if len(self.path) > MOST_PATH or not all(self.path):
            raise BadSettings(
                f"the path is {'/'.join(self.path)!r}: at most {MOST_PATH} names with / between are needed"
            )
        if self.order is not None and self.order < 0:
            raise BadSettings(f"the node rank is {self.order}: 0 or more is needed")


@dataclass(frozen=True, slots=True)
class Timing:
    """heartbeat_s: how often the two sides of a connection are heard. silence_s: after which one is given up.

    drain_grace_s: between SIGTERM and the end, for the stop step, the save and the goodbye. shutdown_s: between a
    process's SIGTERM and its SIGKILL.
    """

    heartbeat_s: float = 2.0
    silence_s: float = 10.0
    drain_grace_s: float = 25.0
    shutdown_s: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isfinite(value) or value < 0:
                raise BadSettings(f"{each.name} is {value}: it must be a time, not negative")
        if not 0 < self.heartbeat_s < self.silence_s:
            raise BadSettings(
                f"a heartbeat each {self.heartbeat_s:g} s, given up after {self.silence_s:g} s: "
                "the first must be above 0 and less than the second"
            )


@dataclass(frozen=True, slots=True)
class Start:
    """How processes begin. fork: from a parent that has imported preload; else each is a fresh interpreter.

    learn: from the second round on, the parent has also imported what the script did in its first.
    numa: torch's name of a binding, "" for none. one_device: each process sees its own device alone, as number 0.
    signals: names that the agent passes on to its processes.
    """

    fork: bool = True
    preload: tuple[str, ...] = ("torch",)
    learn: bool = True
    numa: str = ""
    one_device: bool = False
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


@dataclass(frozen=True, slots=True)
class Output:
    """Where the words of processes and of the agent go. log_dir: "" for a temporary folder if one is needed.

    prefix: template before each line of a tee, "" for torchrun's own. local_ranks: who is shown on the console, () for
    all. stdout_filters, stderr_filters: lines with one of these words go to a file of their own. metrics_port: None
    for no metrics, 0 for any port. json: the agent's log is JSON, else text.
    """

    log_dir: str = ""
    redirects: Streams = Streams()
    tee: Streams = Streams()
    prefix: str = ""
    local_ranks: tuple[int, ...] = ()
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    metrics_port: int | None = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All that one agent is told.

    strategy: how the job trains, if told. explain: the agent only tells what it understood. heard: options and
    variables as they were given. notes: what to tell the user once.
    """

    command: Command
    terms: Terms = field(default_factory=Terms)
    processes: int | Devices = 1
    meeting: Meeting = Meeting()
    place: Place = Place()
    timing: Timing = Timing()
    start: Start = Start()
    output: Output = Output()
    checks: Checks = field(default_factory=Checks)
    hangs: Hangs = field(default_factory=Hangs)
    strategy: str = ""
    explain: bool = False
    heard: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        if not self.command.program and not self.explain:
            raise BadSettings("nothing to run: give a script after the options")
        if isinstance(self.processes, int) and not 1 <= self.processes <= MOST_PROCESSES:
            raise BadSettings(f"{self.processes} processes: 1 to {MOST_PROCESSES} are needed")
        if self.meeting.standalone and self.terms.most != 1:
            raise BadSettings(f"--standalone is for one worker, not for {self.terms.least}:{self.terms.most}")
