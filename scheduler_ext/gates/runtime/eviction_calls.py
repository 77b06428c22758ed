"""Ask the API server to evict pods, one after the other: disruption budgets may refuse each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from turnout.kube.errors import CallError, Conflict, NotFound
from turnout.scheduler_ext.model import Evict
from turnout.scheduler_ext.wire.pod_messages import eviction_body


class Evictions(Protocol):
    """The part of a Client that is needed here."""

    async def create(self, path: str, body: dict[str, Any]) -> bytes:
        """Post an object."""


class EvictionOutcome(StrEnum):
    """Says what became of an eviction. Values are those of the label `came` of turnout_gate_evictions."""

    EVICTED = "evicted"
    GONE = "gone"  # before it was asked for, or another pod has its name by now
    REFUSED = "refused"  # by a disruption budget
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """An eviction that was asked for. error: why it was refused or failed."""

    pod: Evict
    outcome: EvictionOutcome
    error: CallError | None = None


async def evict_each(
    calls: Evictions, victims: Iterable[Evict], may_write: Callable[[], bool]
) -> AsyncIterator[EvictionResult]:
    """Give what became of each eviction. Ends after the first that is refused or fails, and when we may not write."""
    for each in victims:
        if not may_write():
            return
        try:
            await calls.create(f"/api/v1/namespaces/{each.namespace}/pods/{each.name}/eviction", eviction_body(each))
        except (NotFound, Conflict):
            yield EvictionResult(each, EvictionOutcome.GONE)
        except CallError as error:
            yield EvictionResult(
                each, EvictionOutcome.REFUSED if error.status == 429 else EvictionOutcome.FAILED, error
            )
            return
        else:
            yield EvictionResult(each, EvictionOutcome.EVICTED)
