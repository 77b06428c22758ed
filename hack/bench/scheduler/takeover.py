"""A leader is killed with a gang behind its gates: how long until its follower has let the gang go and it is bound."""

from __future__ import annotations

import asyncio
import random
import time

from hack.bench.scheduler.cluster import PODS, build, generated_switches, pod, start_nominator
from hack.bench.scheduler.stream import wait_until_bound, warm
from hack.controlplane.plane import ControlPlane

HOSTS, SIZE = 16, 8
LEASE = ("--lease-seconds", "4", "--gates")  # as the chart sets it


async def time_takeovers(times: int) -> list[float]:
    """Kill the leading nominator `times` times, and create a gang right after each kill. Return, for each time, the
    seconds from the kill until the gang's last pod was bound.
    """
    plane = await asyncio.to_thread(lambda: ControlPlane().start())
    try:
        async with plane.api() as api:
            await build(api, generated_switches(HOSTS, SIZE))
            await asyncio.to_thread(plane.start_scheduler)
            await asyncio.to_thread(start_nominator, plane, *LEASE, name="nominator-0")
            await warm(api, True)
            found = []
            for number in range(times):
                await asyncio.to_thread(start_nominator, plane, *LEASE, name=f"nominator-{number + 1}")
                await asyncio.sleep(random.Random(number).random() * 2)  # at any moment of the leader's renewals
                killed_s = time.monotonic()
                await asyncio.to_thread(plane.kill_program, f"nominator-{number}")
                gang = f"gang-{number}"
                await api.create_all([pod(gang, at, SIZE, True) for at in range(SIZE)])
                _, bound_s = await wait_until_bound(api, gang, SIZE, killed_s)
                found.append(bound_s)
                await asyncio.gather(*(api.delete(f"{PODS}/{gang}-{at}") for at in range(SIZE)))
            return found
    finally:
        await asyncio.to_thread(plane.stop)
