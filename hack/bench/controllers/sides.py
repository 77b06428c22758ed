"""The two controllers as processes: how each is started, that it has seen everything, and what it has used.

Both are given the administrator's account and only the benchmark's namespace. The Training Operator runs with its own
defaults, ours with those of its Deployment.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from hack.bench.controllers.scene import NAMESPACE
from hack.bench.support.measure import cpu_s, memory_mib
from hack.controlplane.plane import ControlPlane, free_ports

READY_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class ControllerUsage:
    """What a controller's process has used so far."""

    cpu_s: float  # user and system time
    peak_mib: float  # most memory so far


class Controller:
    """One controller. name: of the program on the plane. agent: how the user agent of its requests begins.

    reconcile_count, queue_depth: how the lines of its metrics page begin that count reconciliations of jobs, and jobs
    that wait for a reconciliation.
    """

    name = agent = reconcile_count = queue_depth = ""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._metrics = ""

    async def start(self) -> None:
        """Start the controller, and wait until it is ready."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the controller."""
        await asyncio.to_thread(self._plane.stop_program, self.name)

    def usage(self) -> ControllerUsage:
        """Read what the process has used since it began."""
        pid = self._plane.pid(self.name)
        return ControllerUsage(cpu_s(pid), memory_mib(pid, "VmHWM"))

    async def wait_until_caught_up(self, jobs: int) -> None:
        """Wait until it looked at jobs at least `jobs` times since its start, and no job waits for it.

        Raises TimeoutError after READY_WITHIN_S.
        """
        await self._wait_until(
            lambda page: _sum(page, self.reconcile_count) >= jobs and _sum(page, self.queue_depth) == 0
        )

    async def _wait_until(self, is_ready: Callable[[str], bool]) -> None:
        """Get the metrics page until `is_ready` is true of its text. Raises TimeoutError after READY_WITHIN_S."""
        async with asyncio.timeout(READY_WITHIN_S), aiohttp.ClientSession() as session:
            while True:
                async with session.get(self._metrics) as answer:
                    if is_ready(await answer.text()):
                        return
                await asyncio.sleep(0.02)


class TrainingOperator(Controller):
    """The Training Operator."""

    name = agent = "training-operator"
    reconcile_count = 'controller_runtime_reconcile_total{controller="pytorchjob-controller"'
    queue_depth = "workqueue_depth{"

    async def start(self) -> None:
        """Start the Training Operator for the benchmark's namespace alone."""
        await asyncio.to_thread(self._plane.start_training_operator, None, ("--namespace", NAMESPACE))
        self._metrics = f"{self._plane.training_operator_url}/metrics"


class TurnoutController(Controller):
    """The job controllers of this repository."""

    name, agent = "turnout-controller", "turnout"
    reconcile_count, queue_depth = "turnout_controller_decide_seconds_count", "turnout_controller_workqueue_depth"

    async def start(self) -> None:
        """Start our controllers, and wait until they lead. Raises TimeoutError after READY_WITHIN_S."""
        (port,) = free_ports(1)
        self._metrics = f"http://127.0.0.1:{port}/metrics"
        argv = [sys.executable, "-m", "turnout.controllers", "--kinds=PyTorchJob", f"--namespace={NAMESPACE}"]
        argv += [f"--kubeconfig={self._plane.kubeconfig}", f"--metrics-bind=127.0.0.1:{port}"]
        argv += [f"--lease={NAMESPACE}/turnout-controller"]
        url = f"http://127.0.0.1:{port}/readyz"
        await asyncio.to_thread(self._plane.start_program, self.name, argv, url)
        await self._wait_until(lambda page: _sum(page, "turnout_leading") == 1)


def _sum(page: str, series: str) -> float:
    """Return the sum of a metric over its labels, 0 if the page has no such line. series: how its lines begin."""
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(series))


async def restart(side: Controller, jobs: int) -> float:
    """Start a stopped controller. Return the seconds until it has caught up. jobs: their number.

    Raises TimeoutError after READY_WITHIN_S.
    """
    began_s = time.monotonic()
    await side.start()
    await side.wait_until_caught_up(jobs)
    return time.monotonic() - began_s
