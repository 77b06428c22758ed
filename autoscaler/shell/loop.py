"""The lender at work: whenever something changes, and every few seconds, one look and one plan carried out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from autoscaler.decide import decide
from autoscaler.explain import Decisions
from autoscaler.model import Policy, Step
from autoscaler.shell.act import Hands
from autoscaler.shell.metrics import Metrics
from autoscaler.shell.sight import Sight
from autoscaler.view import View
from jobs.model import JobKey
from kube.shell.clock import Clock

log = logging.getLogger("turnout.autoscaler")

LOOK_EACH_S = 5.0  # cooldowns end without anybody changing anything
GATHER_S = 0.05  # changes come in bursts: one look for all of them


class Lender:
    """Decides and acts while `run` runs. steps: of the last look, by job."""

    def __init__(
        self,
        view: View,
        sight: Sight,
        hands: Hands,
        policy: Policy,
        clock: Clock,
        told: Callable[[Step], None],
        metrics: Metrics,
    ) -> None:
        self._view, self._sight, self._hands, self._policy = view, sight, hands, policy
        self._clock, self._told, self._metrics = clock, told, metrics
        self._decisions = Decisions()
        self._faults: dict[JobKey, str] = {}
        self.steps: dict[JobKey, Step] = {}

    async def run(self) -> None:
        """Until cancelled."""
        self._metrics.leading.set(1)
        try:
            while True:
                await self.look(time.time())
                try:
                    async with asyncio.timeout(LOOK_EACH_S):
                        await self._sight.news.wait()
                except TimeoutError:
                    continue
                await self._clock.sleep(GATHER_S)
        finally:
            self._metrics.leading.set(0)

    async def look(self, now_s: float) -> int:
        """One look; how many jobs were written."""
        self._sight.news.clear()
        for key, why in self._view.faults.items():
            if self._faults.get(key) != why:
                log.warning("job_unreadable", extra={"job": str(key), "why": why})
        self._faults = dict(self._view.faults)
        seen = self._view.observation(now_s, self._sight.age_s(), self._sight.whole)
        with self._metrics.decide_s.time():
            steps = decide(seen, self._policy, now_s)
        self._metrics.seen(seen, steps)
        self.steps = {step.key: step for step in steps}
        for step in self._decisions.new(steps):
            self._told(step)
        return await self._hands.carry_out(steps, self._view.raw, now_s)
