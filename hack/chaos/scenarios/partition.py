"""Cuts between the agents of a job, kind 14: real agents in network namespaces, packets lost one way or both.

A cut takes one of three workers from the others: what it sends is lost, or what they send to it, or both. Nobody is
told; connections stay. Needs root and `ip`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.agents import GOES_ON_S, SILENCE_S, WORKERS, Job, split_worlds, until
from hack.chaos.testbed.hosts import Hosts

BACK_S, MADE_S = 120.0, 40.0  # until all train together again; until the first world trains
WAYS = ("what it sends is lost", "what is sent to it is lost", "both are lost")
_PORT = 29400

APART = "two worlds never train at once"
GOES_ON = "those who reach each other train on"
STOPS = "who is cut off stops to train within its silence limit"
TOGETHER = "once the cut is mended, all train in one world"


def play(seed: int, folder: Path) -> Strike:
    """Cut one of three workers off the network, then mend the cut. Return the strike with its checks.

    seed: chooses the worker and the direction. folder: for the files of the job. All have to train together again
    within BACK_S.
    """
    rng = random.Random(f"partition/{seed}")
    at, way = rng.randint(1, WORKERS), WAYS[seed % len(WAYS)]
    net = Hosts(WORKERS)
    try:
        job = Job(folder, f"{net.address(1)}:{_PORT}")
        try:
            times, checks = _story(job, net, at, way)
        finally:
            job.end()
    finally:
        net.end()
    return Strike(Kind.PARTITION, seed, times, checks, f"worker {at} of {WORKERS}: {way}")


def _story(job: Job, net: Hosts, at: int, way: str) -> tuple[int, tuple[Check, ...]]:
    """Start the job, cut host `at` off, wait, mend the cut, and check each phase.

    way: one of WAYS, the direction of the cut. Returns (number of cuts, checks); 0 cuts if the job never trained. net:
    the hosts, whose packets are dropped.
    """
    for host in range(1, WORKERS + 1):
        job.start(host, net.inside(host))
    if not until(lambda: job.trains(WORKERS, 0.0), MADE_S):
        return 0, (Check(GOES_ON, (f"no world of {WORKERS} within {MADE_S:g} s",)),)
    cut_s = time.monotonic()
    _cut(net, at, way)
    survivors_late = [] if until(lambda: job.trains(WORKERS - 1, cut_s), GOES_ON_S) else [f"not within {GOES_ON_S:g} s"]
    time.sleep(SILENCE_S)
    last_s = _last_record_s(job, at, cut_s)
    late = [f"it made a step {last_s:.1f} s after the cut"] if last_s > 3 * SILENCE_S else []
    mended_s = time.monotonic()
    _mend(net, at, way)
    found = until(lambda: job.trains(WORKERS, mended_s), BACK_S)
    ended = job.finish()
    return 1, (
        Check(APART, tuple(split_worlds(job.records()))),
        Check(GOES_ON, tuple(survivors_late)),
        Check(STOPS, tuple(late)),
        Check(TOGETHER, () if found else (f"not within {BACK_S:g} s",)),
        ended,
    )


def _cut(net: Hosts, at: int, way: str) -> None:
    """Drop packets between host `at` and the others.

    way: one of WAYS: the first drops what the host sends, the second what is sent to it, the third both.
    """
    for other in (host for host in range(1, WORKERS + 1) if host != at):
        if way != WAYS[1]:
            net.drop_packets(at, other)
        if way != WAYS[0]:
            net.drop_packets(other, at)


def _mend(net: Hosts, at: int, way: str) -> None:
    """Undo `_cut`, with the same arguments."""
    for other in (host for host in range(1, WORKERS + 1) if host != at):
        if way != WAYS[1]:
            net.undo_drop(at, other)
        if way != WAYS[0]:
            net.undo_drop(other, at)


def _last_record_s(job: Job, at: int, cut_s: float) -> float:
    """Return how many seconds after the cut worker `at` last wrote a record in its first round; 0.0 without a record.

    Negative if that was before the cut. cut_s: time of the cut, monotonic.
    """
    records = [record for record in job.records() if record.worker.partition("/")[0] == f"w{at}"]
    old = min((record.round for record in records), default=0)
    return max((record.at_s - cut_s for record in records if record.round == old), default=0.0)
