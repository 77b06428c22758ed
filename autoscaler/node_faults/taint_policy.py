"""Which nodes are tainted, and which no longer, by what pods have said of them. A pure function of one observation.

A verdict counts if the API server has bound its pod to that node, if it is fresh, and if nobody has dealt with it. What
comes later counts more: a check that passes takes back what its own namespace has proven, and nobody else's word. Never
more than a share of the GPU nodes is tainted by us, and no more than half of it by the word of one namespace.
Source: DL-82, DL-97
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from turnout.autoscaler.node_faults.model import (
    MOST_PROOFS,
    Claim,
    NodeEntry,
    NodeReason,
    NodeState,
    PassedOver,
    Plan,
    Proof,
    Record,
    Rules,
    State,
    Step,
    voice,
)
from turnout.kube.node_health import CheckResult, NodeReport, utc_datetime

_NETWORK = "network"  # what such causes begin with
_OURS_NOT = (None, State.CLEARED, State.SUSPECTED, State.ON_TRIAL)  # in which we have no taint on a node


def judge(seen: NodeState, rules: Rules, now_s: float) -> Plan:
    """Decide what is done to nodes now.

    Steps that take a taint away come first. The others follow by the time of the first report.
    """
    passed_over: list[PassedOver] = []
    said = defaultdict[str, list[tuple[Claim, NodeReport]]](list)
    for claim in seen.claims:
        if (no := _void(claim, seen, rules, now_s)) is not None:
            passed_over.append(no)
        elif (verdict := claim.verdict) is None or verdict.at_s > now_s:
            continue  # its time is still to come
        elif not _old(seen.nodes[claim.node].record, claim, verdict):
            said[claim.node].append((claim, verdict))
    turns = [_Turn(name, standing, rules, now_s) for name, standing in seen.nodes.items()]
    for turn in turns:
        turn.take(sorted(said.get(turn.name, ()), key=_when))
    steps = []
    taints, most = seen.tainted, rules.most(seen.gpu_nodes)
    alone = Counter(whose for turn in turns if turn.standing.tainted and (whose := _sole(turn.standing.record)))
    for turn in sorted(turns, key=lambda turn: (turn.taints, turn.accused_s, turn.name)):
        if not turn.changed:
            continue
        if turn.taints and not turn.standing.tainted:
            if taints >= most:
                why = f"{taints} of {seen.gpu_nodes} GPU nodes are tainted already, {most} may be"
                passed_over += (PassedOver(claim, NodeReason.SHARE_REACHED, why) for claim in turn.by)
                continue
            if (whose := _sole(turn.record)) and alone[whose] >= rules.most_alone(seen.gpu_nodes):
                why = f"{alone[whose]} nodes are tainted by the word of namespace {whose} alone, as many as may be"
                passed_over += (PassedOver(claim, NodeReason.SHARE_REACHED, why) for claim in turn.by)
                continue
            taints += 1
            alone[whose] += 1
        steps.append(turn.step())
    return Plan(tuple(steps), tuple(passed_over))


def _when(said: tuple[Claim, NodeReport]) -> tuple[float, str]:
    return said[1].at_s, said[0].uid


def _old(record: Record | None, claim: Claim, verdict: NodeReport) -> bool:
    """True if a report was dealt with before. A report of another namespace never makes it old."""
    return record is not None and verdict.at <= record.heard_of(voice(claim.pod))


def _sole(record: Record | None) -> str:
    """The namespace whose word alone taints a node, "" where it is that of several."""
    if record is None or record.state is not State.TAINTED or len(record.voices) != 1:
        return ""
    return next(iter(record.voices))


def _void(claim: Claim, seen: NodeState, rules: Rules, now_s: float) -> PassedOver | None:
    """Why this claim says nothing, if it does not."""
    verdict, standing = claim.verdict, seen.nodes.get(claim.node)
    if verdict is None:
        return PassedOver(claim, NodeReason.BAD_VERDICT, claim.fault)
    age_s = now_s - verdict.at_s
    if not claim.node or verdict.node not in ("", claim.node):
        why = f"it speaks of node {verdict.node!r}, and its pod is bound to {claim.node or 'none'!r}"
        return PassedOver(claim, NodeReason.OTHER_NODE, why)
    if standing is None:
        return PassedOver(claim, NodeReason.UNKNOWN_NODE, f"there is no node {claim.node!r}")
    if not -rules.ahead_s <= age_s <= rules.fresh_s:
        how = f"{age_s:.0f} s old" if age_s > 0 else f"of {-age_s:.0f} s ahead of now"
        return PassedOver(claim, NodeReason.STALE, f"it is {how}")
    if _old(standing.record, claim, verdict):
        return None
    if verdict.kind is CheckResult.FINE:
        record = standing.record
        if record is not None and record.proofs and voice(claim.pod) not in record.voices:
            why = f"namespace {', '.join(sorted(record.voices))} has proven it, and only its own checks take that back"
            return PassedOver(claim, NodeReason.OTHERS_PROVED, why)
        network = (
            any(proof.cause.startswith(_NETWORK) for proof in standing.record.proofs) if standing.record else False
        )
        why = "of a network no node can tell alone, and this one's is in doubt"
        return PassedOver(claim, NodeReason.ALONE, why) if network and verdict.members < 2 else None
    if verdict.kind is CheckResult.LINK:
        return PassedOver(claim, NodeReason.ONLY_A_LINK, "neither end of a link between two nodes is to blame")
    if verdict.kind is CheckResult.SLOW and not rules.slow:
        return PassedOver(claim, NodeReason.ONLY_SLOW, "slow nodes are not tainted here")
    if not standing.gpus:
        return PassedOver(claim, NodeReason.NO_GPUS, "only nodes that offer GPUs are tainted")
    if standing.tainted and (standing.record.state if standing.record else None) in _OURS_NOT:
        return PassedOver(claim, NodeReason.BY_HAND, "somebody has tainted it already, and has to free it")
    return None


@dataclass(slots=True)
class _Turn:
    """One node, gone through what is said of it in the order of time."""

    name: str
    standing: NodeEntry
    rules: Rules
    now_s: float
    record: Record | None = None
    word: NodeReason | None = None
    why: str = ""
    accused_s: float = 0.0
    by: tuple[Claim, ...] = ()

    def take(self, said: Sequence[tuple[Claim, NodeReport]]) -> None:
        """All that is said, and what time alone has ended."""
        self.record = self.standing.record
        if self._is(State.TAINTED) and not self.standing.tainted:
            self._become(State.CLEARED, NodeReason.FREED, "its taint was taken away by hand")
            self.record = msgspec.structs.replace(self.record, heard=utc_datetime(self.now_s)) if self.record else None
        before = self.record
        for claim, verdict in said:
            if _old(before, claim, verdict):
                continue
            self.by = (*self.by, claim)
            if verdict.kind is CheckResult.FINE:
                self._fine(claim)
            else:
                self._failed(claim, verdict)
            if self.record is not None:
                self.record = self.record.hearing(voice(claim.pod), verdict.at)
        self._ends()

    def _is(self, state: State) -> bool:
        return self.record is not None and self.record.state is state

    def _fine(self, claim: Claim) -> None:
        had = self.record
        if had is None or self._is(State.CLEARED) or (had.proofs and voice(claim.pod) not in had.voices):
            return
        left = tuple(proof for proof in had.proofs if voice(proof.pod) != voice(claim.pod))
        if left:
            self.record = msgspec.structs.replace(had, proofs=left)
            self.word, self.why = (
                self.word or NodeReason.STILL_FAULTY,
                f"{claim.pod} has passed a check, others failed here",
            )
        else:
            self._become(State.CLEARED, NodeReason.RECOVERED, f"{claim.pod} has passed a check here")

    def _failed(self, claim: Claim, verdict: NodeReport) -> None:
        had = self.record
        proofs = had.proofs if had is not None and had.state in (State.SUSPECTED, State.TAINTED) else ()
        proof = Proof(
            claim.pod, claim.owner, verdict.at, verdict.kind, verdict.cause, verdict.why, verdict.by, verdict.round
        )
        if voice(claim.pod) not in {voice(each.pod) for each in proofs}:
            proofs = (*proofs, proof)[:MOST_PROOFS]
        times = had.times if had is not None and had.state in (State.TAINTED, State.ON_TRIAL) else 0
        why = f"{verdict.cause or verdict.kind.value}: {verdict.why}" if verdict.why else verdict.kind.value
        why = f"{claim.pod} says {why}"
        self.accused_s = self.accused_s or verdict.at_s
        if had is not None and had.state is State.TAINTED:
            self.record = msgspec.structs.replace(had, proofs=proofs)
            self.word, self.why = self.word or NodeReason.STILL_FAULTY, self.why or why
            return
        enough = times > 0 or len({voice(each.pod) for each in proofs}) >= self.rules.verdicts
        if not enough:
            text = f"{why}; verdicts of {self.rules.verdicts} namespaces are needed"
            self._become(State.SUSPECTED, NodeReason.SUSPECTED, text, self.rules.taint_s, proofs)
            return
        word = NodeReason.TAINTED_AGAIN if times else NodeReason.TAINTED
        self._become(State.TAINTED, word, why, self.rules.lasts_s(times + 1), proofs, times + 1)

    def _become(
        self,
        state: State,
        word: NodeReason,
        why: str,
        lasts_s: float | None = None,
        proofs: tuple[Proof, ...] = (),
        times: int = 0,
    ) -> None:
        until, had = None if lasts_s is None else utc_datetime(self.now_s + lasts_s), self.record
        heard, told = (utc_datetime(0), ()) if had is None else (had.heard, had.told)
        self.record = Record(state, utc_datetime(self.now_s), heard, until, times, proofs, told)
        self.word, self.why = word, why

    def _ends(self) -> None:
        """A taint's time is up, or there is nothing left to remember."""
        had = self.record
        if had is None:
            return
        over = had.until is not None and self.now_s >= had.until.timestamp()
        if had.state is State.TAINTED and over:
            trial = utc_datetime(self.now_s + max(self.rules.most_s, self.rules.taint_s))
            since = utc_datetime(self.now_s)
            self.record = msgspec.structs.replace(had, state=State.ON_TRIAL, since=since, until=trial)
            self.word, self.why = NodeReason.EXPIRED, "its time is up: the next check there decides"
            return
        fresh = self.now_s - had.last.timestamp() <= self.rules.fresh_s + self.rules.ahead_s
        if had.state is State.CLEARED and not fresh:
            self.record, self.word, self.why = None, NodeReason.FORGOTTEN, "nothing more was heard of it"
        elif had.state in (State.SUSPECTED, State.ON_TRIAL) and over:
            kept = Record(State.CLEARED, utc_datetime(self.now_s), had.heard, told=had.told)  # old words count no more
            self.record, self.word, self.why = (
                kept if fresh else None,
                NodeReason.FORGOTTEN,
                "nothing more was heard of it",
            )

    @property
    def changed(self) -> bool:
        """True if the node's record changes."""
        return self.word is not None and self.record != self.standing.record

    @property
    def taints(self) -> bool:
        """True if the node is to bear the taint from then on. A taint that is not ours stays."""
        ours = self.standing.record is not None and self.standing.record.state is State.TAINTED
        return self._is(State.TAINTED) or (self.standing.tainted and not ours)

    def step(self) -> Step:
        """Make the node's step. Only for a turn that changed something."""
        assert self.word is not None
        return Step(self.name, self.standing.uid, self.word, self.taints, self.record, self.why, self.by)
