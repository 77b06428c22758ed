"""Many gangs that wait behind their gates on a full cluster: memory, and how soon and by whom freed room is used."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from hack.bench.scheduler.cluster import PODS, UNLIMITED, build, generated_switches, pod, start_nominator
from hack.bench.support.measure import memory_mib
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane

SIZE, HOSTS_PER_LEAF, LEAVES = 20, 20, 2
FREED = 3  # how often a leaf is freed
_BOUND = f"{PODS}?fieldSelector=spec.nodeName!%3D"


@dataclass(frozen=True, slots=True)
class WaitingGangs:
    """The measurements of a nominator with many waiting gangs."""

    pods: int  # that waited at first
    mib: float  # memory of the nominator, the larger of two measurements
    used_s: float  # longest time from a freed leaf until its GPUs were bound again
    out_of_order: int  # times that another gang than the oldest was placed


async def measure_waiting_gangs(gangs: int) -> WaitingGangs:
    """Let `gangs` gangs of SIZE pods wait behind gates, then free a leaf FREED times. Return memory and times."""
    plane = await asyncio.to_thread(lambda: ControlPlane(apiserver_flags=UNLIMITED).start())
    try:
        async with plane.api() as api:
            await _build(api)
            await asyncio.to_thread(plane.start_scheduler)
            await asyncio.to_thread(start_nominator, plane, "--gates")
            for number in range(gangs):
                await api.create_all([pod(f"gang-{number:03d}", at, SIZE, gated=True) for at in range(SIZE)])
            await asyncio.sleep(3)
            mib = memory_mib(plane.pid("nominator"))
            used_s, wrong = [], 0
            for number in range(FREED):
                blocker = "stranger" if number == 0 else f"gang-{number - 1:03d}"
                taken_s, gang = await _time_refill(api, [f"{blocker}-{at}" for at in range(HOSTS_PER_LEAF)])
                used_s.append(taken_s)
                wrong += gang != f"gang-{number:03d}"
            return WaitingGangs(gangs * SIZE, max(mib, memory_mib(plane.pid("nominator"))), max(used_s), wrong)
    finally:
        await asyncio.to_thread(plane.stop)


async def _build(api: Api) -> None:
    """Create two full leaves: one of pods that are deleted later, one of pods that stay."""
    count = HOSTS_PER_LEAF * LEAVES
    await build(api, generated_switches(count, HOSTS_PER_LEAF))
    for at in range(count):
        member = pod("stranger" if at < HOSTS_PER_LEAF else "stays", at % HOSTS_PER_LEAF, 1, gated=False)
        member["spec"]["nodeName"] = f"node-{at:05d}"
        await api.create(member)


async def _time_refill(api: Api, names: list[str]) -> tuple[float, str]:
    """Delete the pods of a leaf. Return (seconds until it is full again, name of the gang that is there)."""
    await asyncio.gather(*(api.delete(f"{PODS}/{name}") for name in names))
    began_s = time.monotonic()

    def all_if_full(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return pods if len(pods) == HOSTS_PER_LEAF * LEAVES else []

    bound = await api.until(_BOUND, all_if_full, 60)
    gangs = {each["metadata"]["labels"]["gang"] for each in bound} - {"stranger", "stays"}
    return time.monotonic() - began_s, "+".join(sorted(gangs))
