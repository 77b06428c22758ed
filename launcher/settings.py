"""Defines one agent's settings: its command, its job's bounds, its rendezvous and its place. They are checked when
built.

The command line is read in cli/. What depends on the machine stays open here: the number of GPUs, the host's name, the
token's text. launcher/agent/start_agent.py finds those out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntFlag, StrEnum
from math import isfinite

from turnout.launcher.errors import BadSettings
from turnout.launcher.health.hang_detector import HangPolicy
from turnout.launcher.health.model import NodeChecks
from turnout.launcher.model import MAX_PROCESSES, PORT, ElasticSpec

MAX_PATH = 16  # switches in a path, as in Member


class ScriptKind(StrEnum):
    """Says how a process runs its command."""

    SCRIPT = "script"
    MODULE = "module"
    PROGRAM = "program"  # run as it is, without Python
    RUN_PATH = "run_path"  # by runpy, in a fresh process of the agent's interpreter


class Devices(StrEnum):
    """The kind of devices of which each gets one training process."""

    AUTO = "auto"  # accelerators if there are any, else CPUs
    CPU = "cpu"
    GPU = "gpu"
    XPU = "xpu"


class Backend(StrEnum):
    """The rendezvous back-end that torchrun's user names. Turnout's coordinator replaces all of them."""

    STATIC = "static"
    C10D = "c10d"
    ETCD = "etcd"
    ETCD_V2 = "etcd-v2"
    TURNOUT = "turnout"


class LockKind(StrEnum):
    """Says what decides the next round when the coordinator is lost."""

    LEASE = "lease"
    FILE = "file"
    MAJORITY = "majority"
    NONE = "none"


class Std(IntFlag):
    """Output streams of a process, by torchrun's numbers."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


class NoteSubject(StrEnum):
    """The subject of a note. The list is closed."""

    NO_EFFECT = "no effect here"
    NO_ADDRESS = "no address"  # several workers without a rendezvous address
    OTHER_BACKEND = "dynamic rendezvous"  # static cannot be resized
    RESIZING = "resizing"  # promised for DDP only


@dataclass(frozen=True, slots=True)
class StartNote:
    """A note for the user when the agent starts."""

    about: str  # an option or variable in the user's spelling
    word: NoteSubject
    why: str  # the explanation, in words

    def __str__(self) -> str:
        return f"{self.about}: {self.word.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class Streams:
    """A choice of streams, for all processes or by local rank. Ranks not named have none."""

    every: Std = Std.NONE  # of each process, if by_rank is None
    by_rank: tuple[tuple[int, Std], ...] | None = None  # (local rank, streams); None: every

    def of(self, local_rank: int) -> Std:
        """Return the chosen streams of one process."""
        return self.every if self.by_rank is None else dict(self.by_rank).get(local_rank, Std.NONE)


@dataclass(frozen=True, slots=True)
class Command:
    """The command that every training process runs."""

    program: str = ""  # path of a script or program, or a module's name; "" for none
    arguments: tuple[str, ...] = ()  # of the program
    kind: ScriptKind = ScriptKind.SCRIPT
    python: str = ""  # the interpreter, "" for the agent's
    role: str = "default"  # ROLE_NAME of the processes


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """Says how the members of a job find each other, and what decides among them."""

    run: str = "none"  # the job's id, the same for all members; "" for a single worker, which makes its own
    backend: Backend = Backend.STATIC
    host: str = "127.0.0.1"  # where the first coordinator listens; "" if only the arbiter's record names it
    port: int = PORT  # 0 for any
    is_host: bool | None = None  # this member is the first coordinator; None: the one to which the address belongs
    store_port: int = 0  # of a single worker: where its processes meet, 0 for any
    standalone: bool = False  # a job of one worker (--standalone)
    worker_count: int | None = None  # how many workers the job has now; None if unknown
    arbiter: LockKind = LockKind.MAJORITY
    lease: str = ""  # namespace/name
    round_dir: str = ""  # a folder that all members share
    token_file: str = ""  # a file with the job's token, "" for none
    insecure: bool = False  # talk to other hosts without a token

    def __post_init__(self) -> None:
        for port in (self.port, self.store_port):
            if not 0 <= port < 65_536:
                raise BadSettings(f"port {port} is outside 0 to 65535")
        if self.worker_count is not None and self.worker_count < 1:
            raise BadSettings(f"wanted is {self.worker_count}: at least 1 worker is needed")
        if self.lease and (self.lease.count("/") != 1 or not all(self.lease.split("/"))):
            raise BadSettings(f"the lease is {self.lease!r}: it must be namespace/name")
        self._check_arbiter()

    def _check_arbiter(self) -> None:
        """Raise BadSettings if the kind of lock lacks its option, or if no way to find the other workers is given."""
        if self.arbiter is LockKind.LEASE and not self.lease:
            raise BadSettings("the arbiter lease needs --lease namespace/name")
        if self.arbiter is LockKind.FILE and not self.round_dir:
            raise BadSettings("the arbiter file needs --round-dir, a folder that all workers share")
        if not self.host and self.arbiter not in (LockKind.LEASE, LockKind.FILE):
            raise BadSettings("no address to meet at: give --rdzv-endpoint, --lease or --round-dir")


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """Says who this worker is and where it runs. "" and None stand for unknown; the agent may determine it later."""

    name: str = ""  # its replacement keeps it
    host: str = ""  # the machine
    address: str = ""  # where other workers reach it
    path: tuple[str, ...] = ()  # switches from the root to above the host
    path_file: str = ""  # a file with the path, read if path is ()
    order: int | None = None  # the worker's index if the job numbers its workers; a hint, since some jobs give it twice

    def __post_init__(self) -> None:
        if len(self.path) > MAX_PATH or not all(self.path):
            raise BadSettings(
                f"the path is {'/'.join(self.path)!r}: at most {MAX_PATH} names with / between are needed"
            )
        if self.order is not None and self.order < 0:
            raise BadSettings(f"the node rank is {self.order}: 0 or more is needed")


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals and limits of one agent, in seconds, each finite and >= 0."""

    heartbeat_s: float = 2.0  # between heartbeats of both sides of a connection
    silence_s: float = 10.0  # without a message, after which the other side counts as lost
    drain_grace_s: float = 25.0  # from SIGTERM to the end: stop step, save and goodbye
    shutdown_s: float = 30.0  # between a process's SIGTERM and its SIGKILL

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
class StartSettings:
    """Says how processes are started."""

    fork: bool = True  # from a parent that has imported torch and `preload`; else each is a fresh interpreter
    preload: tuple[str, ...] = ()  # modules that the parent imports besides torch
    numa: str = ""  # torch's name of a binding, "" for none
    one_device: bool = False  # each process sees only its own device, as number 0
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # passed on to the processes


@dataclass(frozen=True, slots=True)
class Output:
    """Says where the output of processes and of the agent goes."""

    log_dir: str = ""  # "" for a temporary folder if one is needed
    redirects: Streams = Streams()
    tee: Streams = Streams()
    prefix: str = ""  # template before each line of a tee, "" for torchrun's
    local_ranks: tuple[int, ...] = ()  # shown on the console, () for all
    stdout_filters: tuple[str, ...] = ()  # lines with one of these words also go to a separate file
    stderr_filters: tuple[str, ...] = ()  # lines with one of these words also go to a separate file
    metrics_port: int | None = None  # None for no metrics, 0 for any port
    json: bool = False  # the agent's log is JSON, else text


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one agent."""

    command: Command
    elastic_spec: ElasticSpec = field(default_factory=ElasticSpec)
    processes: int | Devices = 1  # training processes of this worker, or the devices of which each gets one
    rendezvous: RendezvousSettings = RendezvousSettings()
    place: PlaceSettings = PlaceSettings()
    timing: Timing = Timing()
    start: StartSettings = StartSettings()
    output: Output = Output()
    checks: NodeChecks = field(default_factory=NodeChecks)
    hangs: HangPolicy = field(default_factory=HangPolicy)
    strategy: str = ""  # how the job trains, "" if the user names none
    explain: bool = False  # only print how the command line was understood (--explain)
    coordinates: bool = False  # serve the rendezvous and start no training process (--coordinator-only)
    given_options: tuple[str, ...] = ()  # options and variables in the user's spelling
    notes: tuple[StartNote, ...] = ()  # logged for the user at the start

    def __post_init__(self) -> None:
        if not self.command.program and not self.explain and not self.coordinates:
            raise BadSettings("nothing to run: give a script after the options")
        if self.coordinates and (self.rendezvous.standalone or not self.rendezvous.host or not self.rendezvous.port):
            raise BadSettings("--coordinator-only needs --rdzv-endpoint HOST:PORT, where it is to listen")
        if isinstance(self.processes, int) and not 1 <= self.processes <= MAX_PROCESSES:
            raise BadSettings(f"{self.processes} processes: 1 to {MAX_PROCESSES} are needed")
        if self.rendezvous.standalone and self.elastic_spec.max_nodes != 1:
            raise BadSettings(
                f"--standalone is for one worker, not for {self.elastic_spec.min_nodes}:{self.elastic_spec.max_nodes}"
            )
