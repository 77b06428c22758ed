"""The kinds of faults of docs/facts/reliability.md, section 3, under its numbers, and what strikes each.

A kind is struck by faults of the training job (fault_schedule.py), by a scenario (scenarios/), or by both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hack.chaos.fault_schedule import Fault


class Kind(Enum):
    """A kind of fault, by its number in the table of docs/facts/reliability.md."""

    API_RESTART = 1
    WATCH_GONE = 2
    WATCH_SILENT = 3
    ETCD = 4
    THROTTLED = 5
    ACCESS = 6
    EVENTS = 7
    MAP = 8
    NODES = 9
    EXTENDER_KILLED = 10
    EXTENDER_SLOW = 11
    LEADER_PAUSED = 12
    CLOCK = 13
    PARTITION = 14
    WORKER = 15
    WRITER_KILLED = 16
    STORAGE = 17
    CORRUPTION = 18
    LEAVERS = 19
    UPGRADE = 20
    HOT_QUEUE = 21
    CERTIFICATE = 22


TITLES: Mapping[Kind, str] = {
    Kind.API_RESTART: "API server restarts",
    Kind.WATCH_GONE: "watch answers 410",
    Kind.WATCH_SILENT: "watch falls silent",
    Kind.ETCD: "etcd loses its leader",
    Kind.THROTTLED: "429 with Retry-After",
    Kind.ACCESS: "403, and 401 after a rotation",
    Kind.EVENTS: "events reordered, twice, missing",
    Kind.MAP: "topology map broken",
    Kind.NODES: "nodes flap, most unready",
    Kind.EXTENDER_KILLED: "extender killed",
    Kind.EXTENDER_SLOW: "extender slow",
    Kind.LEADER_PAUSED: "leader paused, then resumed",
    Kind.CLOCK: "clock jumps",
    Kind.PARTITION: "network cut, one way and both",
    Kind.WORKER: "worker killed, stopped or lost",
    Kind.WRITER_KILLED: "writer of a checkpoint killed",
    Kind.STORAGE: "storage full, slow, gone; EMFILE",
    Kind.CORRUPTION: "memory or storage corrupted",
    Kind.LEAVERS: "256 leave at once",
    Kind.UPGRADE: "chart upgraded and rolled back",
    Kind.HOT_QUEUE: "one hot queue among many",
    Kind.CERTIFICATE: "certificate rotates or expires",
}

# The kind of each fault of the training job. A leader that is killed is of none: the table has one that comes back.
OF_JOB: Mapping[Fault, Kind] = {
    Fault.PROCESS: Kind.WORKER,
    Fault.AGENT: Kind.WORKER,
    Fault.POD: Kind.WORKER,
    Fault.COORDINATOR: Kind.WORKER,
    Fault.NODE: Kind.NODES,
    Fault.STOPPED: Kind.WORKER,
    Fault.RIVAL: Kind.LEAVERS,
    Fault.API: Kind.API_RESTART,
    Fault.EXTENDER: Kind.EXTENDER_KILLED,
    Fault.CUT: Kind.STORAGE,
    Fault.FULL: Kind.STORAGE,
}
