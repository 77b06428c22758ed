"""Write the minCount of native PodGroups: lower before a job shrinks, higher again once its pods run.

Each write is valid for one version of the PodGroup. A refused write is reported once and does not hold the shrink back,
because other jobs wait for the room. `native_gangs.py` decides the number and whose PodGroup it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnout.autoscaler.model import GangReason
from turnout.autoscaler.observe.native_gangs import GroupUse, NativeGangs, min_after_resize, min_of_shrink, patch_of
from turnout.jobs.model import JobKey
from turnout.kube.client.apply import MERGE
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, Forbidden, NotFound, NotLeading, Rejected

log = logging.getLogger("turnout.autoscaler")

FIELD_MANAGER = "turnout-autoscaler"
MAX_CONSECUTIVE_FAILURES = 5  # of one PodGroup; then its job shrinks without the write
REFUSAL_PAUSE_S = 3_600.0  # from a refused write of one PodGroup to the next
RETRY_PAUSE_S = 30.0  # from a failed raise of one PodGroup to the next
TOGETHER = 16  # writes that run at the same time
_MAX_REMEMBERED = 1_000  # PodGroups with refusals or failures that may be deleted


class GangUses(Protocol):
    """The PodGroups, and how the pods of jobs use them. `observe/job_states.py` has it as GroupUses."""

    native: NativeGangs

    def of_job(self, key: JobKey, size: int) -> list[GroupUse]:
        """Return how the pods of a job at a size, in workers, use native PodGroups. As GroupUses.of_job()."""

    def uses_to_correct(self, changes: Callable[[JobKey], bool]) -> list[tuple[JobKey, GroupUse]]:
        """Return (job, use) of PodGroups whose minCount does not fit the pods of a resized job, which all run.

        changes: returns True for a job whose size is about to change. As GroupUses.uses_to_correct().
        """


@dataclass(frozen=True, slots=True)
class GangMinReport:
    """The outcome of one write of a minCount, or why it was skipped."""

    key: JobKey  # the job
    group: str  # namespace/name of the PodGroup
    uid: str  # of the PodGroup
    reason: GangReason  # of the write, or the obstacle
    outcome: str  # Written, Conflict, Refused or Skipped
    detail: str  # numbers, or the message of the API server


class GangMinWriter:
    """The writer of minCount. report: receives the outcome of each write, and each obstacle to one."""

    def __init__(self, calls: Calls, gang_uses: GangUses, report: Callable[[GangMinReport], None]) -> None:
        """Start without failures. The class docstring explains `report`."""
        self._calls, self._gang_uses, self._report = calls, gang_uses, report
        self._refused_s: dict[str, float] = {}  # uid of a PodGroup -> time of the last refused write
        self._failures: dict[str, tuple[int, float]] = {}  # uid -> consecutive failures, and time of the last
        self._corrected: dict[str, int] = {}  # uid of a PodGroup without our annotations -> the last minCount written

    async def lower(self, key: JobKey, size: int, now_s: float) -> str:
        """Lower the minCount of a job's PodGroups to the pods that stay when the job shrinks to `size` workers.

        Return "" if the job may shrink now. Then for each PodGroup:

        - the write has succeeded or was not needed;
        - or an obstacle forbids it, which is reported;
        - or the API server refuses it, now or within the last REFUSAL_PAUSE_S;
        - or it has failed MAX_CONSECUTIVE_FAILURES times.

        Else return Conflict, Refused (the server did not answer) or NotLeading: the shrink waits, and no further write
        is made. now_s: seconds since 1970.
        """
        for use in self._gang_uses.of_job(key, size):
            min_count = min_of_shrink(use)
            if min_count is None:
                continue
            if use.obstacle is not None:
                detail = f"{use.pods} of its pods stay, the minCount is {use.group.min_count}"
                self._report_write(key, use, use.obstacle, "Skipped", detail)
            elif not self._is_refused(use.group.uid, now_s):
                outcome = await self._write(key, use, min_count, now_s)
                if outcome and (outcome == "NotLeading" or not self._give_up(use.group.uid)):
                    return outcome
        return ""

    def _give_up(self, uid: str) -> bool:
        """Return True after MAX_CONSECUTIVE_FAILURES failed writes of a PodGroup: its job then shrinks anyway.

        uid: of the PodGroup. If True is returned, its failures are forgotten.
        """
        if self._failures.get(uid, (0, 0.0))[0] < MAX_CONSECUTIVE_FAILURES:
            return False
        del self._failures[uid]
        return True

    async def correct_after_resize(self, changes: Callable[[JobKey], bool], now_s: float) -> None:
        """Write the minCount that fits resized jobs whose pods all run. Failures are reported and retried later.

        changes: returns True for a job whose size is about to change; its PodGroups wait. now_s: seconds since 1970.
        """
        uses = self._gang_uses.uses_to_correct(changes)
        for at in range(0, len(uses), TOGETHER):
            await asyncio.gather(*(self._correct_one(key, use, now_s) for key, use in uses[at : at + TOGETHER]))
        self._forget_deleted()

    async def _correct_one(self, key: JobKey, use: GroupUse, now_s: float) -> None:
        """Write the minCount of one PodGroup if it does not fit its pods. key: of the job. use: the PodGroup and its
        pods. now_s: seconds since 1970.

        Nothing is written for REFUSAL_PAUSE_S after a refusal, or for RETRY_PAUSE_S after another failure. If the
        PodGroup has no annotation of ours, because its job shrank without a write of minCount, each minCount is written
        only once.
        """
        min_count, uid = min_after_resize(use), use.group.uid
        if min_count is None or self._is_refused(uid, now_s):
            return
        if use.group.wrote is None:
            if self._corrected.get(uid) == min_count:
                return
            self._corrected[uid] = min_count
        _, failed_s = self._failures.get(uid, (0, float("-inf")))
        if 0 <= now_s - failed_s < RETRY_PAUSE_S or await self._write(key, use, min_count, now_s):
            self._gang_uses.native.check_again([(use.group.namespace, use.group.name)])

    def _is_refused(self, uid: str, now_s: float) -> bool:
        """Return True for REFUSAL_PAUSE_S after a refused write of a PodGroup. uid: of the PodGroup. now_s: since 1970.

        A clock that was set back delays nothing.
        """
        at_s = self._refused_s.get(uid)
        return at_s is not None and 0 <= now_s - at_s < REFUSAL_PAUSE_S

    async def _write(self, key: JobKey, use: GroupUse, min_count: int, now_s: float) -> str:
        """Write the minCount of one PodGroup. use: the PodGroup and its pods. min_count: the new value.

        Return "" if nothing is left to do: written, PodGroup deleted, or forbidden or rejected by the API server (then
        not retried for REFUSAL_PAUSE_S). Return Conflict, Refused (the server failed) or NotLeading if a retry may
        help. All but NotLeading and a deleted PodGroup are reported; a lasting refusal once. now_s: seconds since 1970.
        """
        group = use.group
        reason = GangReason.LOWERED if min_count < group.min_count else GangReason.RAISED
        try:
            answer = await self._calls.patch(group.path, patch_of(group, min_count), MERGE, FIELD_MANAGER)
        except NotFound:
            return ""  # deleted meanwhile: the watch will show it
        except NotLeading:
            return "NotLeading"
        except (Forbidden, Rejected) as error:
            first = group.uid not in self._refused_s
            self._refused_s[group.uid] = now_s
            if first:
                self._report_write(key, use, GangReason.REFUSED, "Refused", error.message[:300])
            return ""
        except CallError as error:
            self._failures[group.uid] = self._failures.get(group.uid, (0, 0.0))[0] + 1, now_s
            outcome = "Conflict" if isinstance(error, Conflict) else "Refused"
            self._report_write(key, use, reason, outcome, str(error)[:300])
            return outcome
        self._failures.pop(group.uid, None)
        self._refused_s.pop(group.uid, None)
        self._store_written(answer)
        stated = f", of the stated {group.stated_min}" if min_count < group.stated_min else ""
        self._report_write(key, use, reason, "Written", f"minCount {group.min_count} to {min_count}{stated}")
        return ""

    def _store_written(self, answer: bytes) -> None:
        """Store the PodGroup that the API server has returned, before the watch shows it. answer: its JSON."""
        group = json.loads(answer)
        if group.get("metadata", {}).get("name"):
            self._gang_uses.native.put_group(group)

    def _report_write(self, key: JobKey, use: GroupUse, reason: GangReason, outcome: str, detail: str) -> None:
        """Pass the outcome of a write, or a skipped write, to `report`. use: the PodGroup and its pods. reason,
        outcome, detail: as of GangMinReport.
        """
        name = f"{use.group.namespace}/{use.group.name}"
        self._report(GangMinReport(key, name, use.group.uid, reason, outcome, detail))

    def _forget_deleted(self) -> None:
        """Forget deleted PodGroups once more than _MAX_REMEMBERED refusals, failures and corrections are stored
        together.
        """
        tables: Sequence[dict[str, Any]] = (self._refused_s, self._failures, self._corrected)
        if sum(map(len, tables)) <= _MAX_REMEMBERED:
            return
        known = self._gang_uses.native.uids()
        for table in tables:
            for uid in [uid for uid in table if uid not in known]:
                table.pop(uid)
