"""The kinds of faults that need a whole job or cluster, under the numbers of docs/facts/reliability.md, section 3.

docs/chaos-tests.md names the tests of the other kinds. Faults of the training job (fault_schedule.py), a scenario
(scenarios/), or both strike a kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hack.chaos.fault_schedule import Fault


class Kind(Enum):
    """A kind of fault, by its number in the table of docs/facts/reliability.md."""

    API_RESTART = 1
    NODES = 9
    EXTENDER_KILLED = 10
    PARTITION = 14
    WORKER = 15
    STORAGE = 17
    LEAVERS = 19
    UPGRADE = 20


TITLES: Mapping[Kind, str] = {
    Kind.API_RESTART: "API server restarts",
    Kind.NODES: "a node is lost",
    Kind.EXTENDER_KILLED: "extender killed",
    Kind.PARTITION: "network cut, one way and both",
    Kind.WORKER: "worker killed, stopped or lost",
    Kind.STORAGE: "storage full or gone",
    Kind.LEAVERS: "many leave at once",
    Kind.UPGRADE: "chart upgraded and rolled back",
}

# The kind of each fault of the training job. A leader that is killed is of none: kind 12 is one that comes back.
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
