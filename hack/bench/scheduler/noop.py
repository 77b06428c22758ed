"""An extender that accepts every node: the cost of asking an extender at all. `python noop.py PORT HEALTH_PORT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from turnout.kube.objects import Pod
from turnout.scheduler_ext.model import Answer, Victims
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import Listen, Listeners
from turnout.scheduler_ext.wire.pod_messages import Review


class NoopExtender:
    """Implements Extender without an opinion. scores: every node has the same score; otherwise none has any."""

    def __init__(self, scores: bool = False) -> None:
        self._scores = scores

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        return Answer()

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        return [(name, 1) for name in names] if self._scores else ()

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        return victims

    def refusal_of_pod(self, pod: Pod) -> Answer:
        return Answer()

    def refusal_of_gang(self, namespace: str, name: str) -> Answer:
        return Answer()

    def gates(self, review: Review) -> bool:
        return False

    def unready_reason(self) -> str | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}


async def serve(port: int, health_port: int) -> None:
    """Serve until killed."""
    async with Listeners(NoopExtender(scores=True), Metrics(), Listen(port=port, health_port=health_port)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
