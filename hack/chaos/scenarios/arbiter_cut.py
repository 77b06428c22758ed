"""A job whose agents are cut off from the API server, kind 14: its Lease grants rounds, and nobody answers any more.

Each agent reaches the embedded API through a proxy of its own. While the coordinator's is cut, one way or both, a
training process is killed, so that a new round is needed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from hack.chaos.fault_kinds import Kind
from hack.chaos.scenarios.fault_proxy import Answer, FaultProxy, fault_proxy
from hack.chaos.scenarios.partition import APART, MADE_S, TOGETHER
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.agents import WORKERS, Job, split_worlds, until
from turnout.cli.verb_support.child_programs import free_port
from turnout.simulator.api.kubeconfig import kubeconfig
from turnout.simulator.api.server.serve import serve
from turnout.simulator.cluster.runtime.clients import DirectClient

AGAIN_S = 30.0  # until a new round trains
_OPTIONS = ("--rdzv-id=train", "--lease=default/train", "--max-restarts=10")
_LOST_S = 600.0  # longer than anybody waits
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
WAYS = {
    "what it asks of the API server is lost": Answer(delay_s=_LOST_S),
    "what the API server answers is lost": Answer(hold_answer_s=_LOST_S),
}

GOES_ON = "a job whose coordinator cannot reach its Lease trains on, and forms a round for a majority"


async def play(seed: int, folder: Path) -> Strike:
    """Cut the coordinator off the API server, kill a process, mend the cut, kill another process. Return the strike.

    seed: chooses how requests fail and which processes are killed. folder: for files.
    """
    rng = random.Random(f"arbiter/{seed}")
    way = sorted(WAYS)[seed % len(WAYS)]
    async with serve() as served, AsyncExitStack() as ends:
        await DirectClient(served.store).call("POST", _LEASES, {"metadata": {"name": "train"}})
        proxies = [await ends.enter_async_context(fault_proxy(served.url)) for _ in range(WORKERS)]
        times, checks = await asyncio.to_thread(_story, folder, proxies, way, rng)
    return Strike(Kind.PARTITION, seed, times, checks, f"the coordinator and its Lease: {way}")


def _story(folder: Path, proxies: list[FaultProxy], way: str, rng: random.Random) -> tuple[int, tuple[Check, ...]]:
    """Run the job and the faults, each agent behind its own proxy. Return (requests that the cut hit, checks).

    way: key of WAYS, how requests of the coordinator's agent fail. proxies: one for each agent, in front of the API
    server.
    """
    job = Job(folder, f"127.0.0.1:{free_port()}")
    try:
        for at, proxy in enumerate(proxies, 1):
            config = folder / f"kubeconfig-{at}"
            config.write_text(kubeconfig(proxy.url))
            job.start(at, (), _OPTIONS, KUBECONFIG=str(config))
        if not until(lambda: job.trains(WORKERS, 0.0), MADE_S):
            return 0, (Check(GOES_ON, (f"no world of {WORKERS} within {MADE_S:g} s",)),)
        leads = max(proxies, key=lambda proxy: sum(each.method == "PATCH" for each in proxy.requests))
        leads.decide = lambda request: WAYS[way]
        cut_s = time.monotonic()
        _kill_one(job, rng)
        resumed = until(lambda: job.trains(WORKERS, cut_s), AGAIN_S)
        lost, mended_s = leads.touched_count, time.monotonic()
        leads.pass_all()
        _kill_one(job, rng)
        together = until(lambda: job.trains(WORKERS, mended_s), AGAIN_S)
        ended = job.finish()
        return lost, (
            Check(APART, tuple(split_worlds(job.records()))),
            Check(GOES_ON, () if resumed else (f"not within {AGAIN_S:g} s of a lost process",)),
            Check(TOGETHER, () if together else (f"not within {AGAIN_S:g} s",)),
            ended,
        )
    finally:
        job.end()


def _kill_one(job: Job, rng: random.Random) -> None:
    if processes := job.processes():
        with suppress(ProcessLookupError):
            os.kill(rng.choice(processes), signal.SIGKILL)
