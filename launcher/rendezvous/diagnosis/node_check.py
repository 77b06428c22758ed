"""Checks nodes before a round: members measure in groups, and faulty ones leave before training starts.

Groups and verdicts are made in launcher/health. A check covers all members present; it starts again if one of them
goes, or if an unchecked one is needed. Members not proven bad may train, and undecided groups are reported.
If two good nodes cannot reach each other, one of them goes if enough remain. Source: DL-80 to DL-85
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from zlib import crc32

from turnout.launcher.coordinator_messages import Finish, Found, Judged, Probe, Probed
from turnout.launcher.health.judge_nodes import next_groups
from turnout.launcher.health.model import (
    AGAIN_S,
    MOST_AGAIN_S,
    Check,
    ExcludedNode,
    Group,
    Groups,
    Measured,
    NodeCheckState,
    Verdict,
)
from turnout.launcher.model import Exit, Member, Reason
from turnout.launcher.rendezvous.state import MemberState, Phase, Transition

SWITCHBOX = "switchbox_failed"  # the cause that an unfit node reports of itself
MOST_WHY = 1_024  # characters of a text in a message
Faults: TypeAlias = dict[str, tuple[Reason, str, str]]  # reason, explanation and unreachable peer, by excluded member


def checked_members(transition: Transition, candidates: list[MemberState], size: int) -> list[MemberState] | None:
    """Return the members that may train. None if too few have passed: a check then starts."""
    checking = transition.state.checking
    if checking is None:
        return candidates
    passed = [known for known in candidates if known.member.id in checking.passed]
    if transition.state.job.elastic_spec.world_size(len(passed)) >= size:
        return passed
    nodes = tuple(known.member.id for known in sorted(candidates, key=lambda known: _place(known.member)))
    check = Check(nodes, checking.limits)
    # Differs by coordinator, so that answers to another one are ignored.
    number = checking.number or crc32(transition.state.job.member.id.encode())
    transition.state = replace(
        transition.state,
        phase=Phase.CHECKING,
        checking=replace(
            checking, number=number, check=check, verdict=None, passed=frozenset(), unfit={}, began_s=transition.now_s
        ),
    )
    transition.log_event("check_started", transition.state.cause.reason, members=len(nodes))
    _order_probes(transition, check, next_groups(check))
    return None


def _place(member: Member) -> tuple[tuple[str, ...], int, str]:
    """Order members so that neighbours in the fabric are adjacent."""
    return member.path, -1 if member.index is None else member.index, member.name


def _order_probes(transition: Transition, check: Check, groups: Groups | Verdict) -> None:
    """Order the next probes of a node check, one group of nodes after the plan of `groups`.

    A verdict ends the check, or orders a last probe of all good nodes together. check: what this step of the check
    tests.
    """
    checking = transition.state.checking
    assert checking is not None
    if isinstance(groups, Verdict):
        faults = _faults(transition, checking, groups)
        everyone = tuple(node for node in check.nodes if node not in faults)
        if not checking.all_together or len(everyone) < 2:
            _end_check(transition, check, groups)
            return
        checking, groups = replace(checking, verdict=groups), (everyone,)
    number, until_s = checking.number + 1, transition.now_s + checking.round_s
    checking = replace(checking, number=number, check=check, groups=groups, results={}, until_s=until_s)
    transition.state = replace(transition.state, checking=checking)
    for group in groups:
        members = [transition.members[id_].member for id_ in group]
        local, first = min(member.processes for member in members), members[0]
        for at, id_ in enumerate(group):
            order = Probe(number, at * local, local * len(group), len(group), first.address, first.master_port)
            transition.send((id_,), order)
    transition.wake(until_s)


def record_probe(transition: Transition, id_: str, known: MemberState, answer: Probed) -> None:
    """Record one member's measurement and the next port that it offers, since the last one was used."""
    checking = transition.state.checking
    if checking is None or transition.state.phase is not Phase.CHECKING or answer.number != checking.number:
        return
    transition.set_member(id_, replace(known, member=replace(known.member, master_port=answer.master_port)))
    unfit = {**checking.unfit, id_: answer.unfit} if answer.unfit else checking.unfit
    transition.state = replace(
        transition.state, checking=replace(checking, results={**checking.results, id_: answer}, unfit=unfit)
    )


def continue_check(transition: Transition) -> None:
    """Continue the check as far as the results allow: wait, start the next groups, or judge."""
    checking = transition.state.checking
    assert checking is not None
    assert checking.check is not None
    if any((known := transition.members.get(id_)) is None or known.leave_s is not None for id_ in checking.check.nodes):
        _give_up(transition, checking)
        return
    if transition.now_s < checking.until_s and any(map(partial(_is_awaited, checking), checking.groups)):
        transition.wake(checking.until_s)
        return
    if checking.verdict is not None:
        _log_speed(transition, checking)
        _end_check(transition, checking.check, checking.verdict)
        return
    results = tuple(result for group in checking.groups for result in _group_results(checking, group))
    after = checking.check.after(results)
    _order_probes(transition, after, next_groups(after))


def restart_check(transition: Transition, id_: str) -> None:
    """Restart the check when a member connects again, since its order or its answer may be lost."""
    checking = transition.state.checking
    if transition.state.phase is Phase.CHECKING and checking and checking.check and id_ in checking.check.nodes:
        _give_up(transition, checking)


def _give_up(transition: Transition, checking: NodeCheckState) -> None:
    """Stop the check. At the end of this transition the members present are checked from the beginning."""
    transition.state = replace(transition.state, phase=Phase.GATHERING, checking=replace(checking, check=None))
    transition.log_event("check_given_up", Reason.MEMBER_LOST)


def _is_awaited(checking: NodeCheckState, group: Group) -> bool:
    """Return True if a member of the group still has to answer. A group with a broken member is not waited for."""
    answers = [checking.results.get(id_) for id_ in group]
    return None in answers and all(answer is None or answer.compute_s is not None for answer in answers)


def _group_results(checking: NodeCheckState, group: Group) -> tuple[Measured, ...]:
    """Collect a group's results. If one member is broken, each answer counts alone, and members without an answer are
    tested again.

    A living member that does not answer counts as one whose own computation is stuck.
    """
    answers = {id_: checking.results[id_] for id_ in group if id_ in checking.results}
    if any(answer.compute_s is None for answer in answers.values()):
        return tuple(Measured((id_,), (answer.compute_s,), None) for id_, answer in answers.items())
    times = [answers[id_].collective_s if id_ in answers else None for id_ in group]
    known_times = [time_s for time_s in times if time_s is not None]
    together = max(known_times) if len(known_times) == len(times) else None
    own_times = tuple(answers[id_].compute_s if id_ in answers else None for id_ in group)
    return (Measured(group, own_times, together),)


def _end_check(transition: Transition, check_: Check, verdict: Verdict) -> None:
    """Remove faulty members and let the others train. If nobody else is left, the job ends."""
    at, checking = transition.state, transition.state.checking
    assert checking is not None
    faults = _faults(transition, checking, verdict)
    passed = frozenset(check_.nodes) - faults.keys()
    left = _update_exclusions(transition, checking, check_, faults)
    checking = replace(checking, check=None, groups=(), verdict=None, passed=passed, excluded=left)
    transition.state = replace(at, phase=Phase.GATHERING, checking=checking)
    _log_findings(transition, check_, verdict, faults)
    _send_findings(transition, check_, checking, verdict)
    if all(known.leave_s is not None or id_ in faults for id_, known in transition.members.items()):
        reason, why, _ = next(iter(faults.values()))
        transition.finish(Exit.FAULTY, reason, why)
        return
    for id_, (reason, why, _) in faults.items():
        transition.set_member(id_, replace(transition.members[id_], leave_s=transition.now_s))
        if id_ != at.job.member.id:  # the coordinator itself hands over first, and its successor checks it
            transition.send((id_,), Finish(int(Exit.FAULTY), reason.value, why[:MOST_WHY]))


def _send_findings(transition: Transition, check_: Check, checking: NodeCheckState, verdict: Verdict) -> None:
    """Send each member the finding about its node, if there is one."""
    finding_of = dict.fromkeys(check_.nodes, (Found.FINE, "", ""))
    for riddle in verdict.undecided:
        for id_ in riddle.nodes:
            finding_of.pop(id_, None)
    findings = (
        (Found.LINK, verdict.bad_links + verdict.slow_links),
        (Found.SLOW, verdict.slow_nodes),
        (Found.FAULTY, verdict.bad_nodes),
    )
    for found, each in findings:
        finding_of |= {id_: (found, finding.cause.value, finding.why) for finding in each for id_ in finding.nodes}
    finding_of |= {id_: (Found.FAULTY, SWITCHBOX, why) for id_, why in checking.unfit.items()}
    ids_by_finding = defaultdict[tuple[Found, str, str], list[str]](list)
    for id_, own_finding in finding_of.items():
        ids_by_finding[own_finding].append(id_)
    at = transition.state
    for (found, cause, why), ids in ids_by_finding.items():
        why = why[:MOST_WHY]
        transition.send(
            ids, Judged(at.round + 1, found, at.job.member.name, at.job.run[:MOST_WHY], len(check_.nodes), cause, why)
        )


def _update_exclusions(
    transition: Transition, checking: NodeCheckState, check_: Check, faults: Faults
) -> tuple[ExcludedNode, ...]:
    """Update the list of excluded nodes.

    Each exclusion lasts twice as long as the last; a node that passes is removed.
    """
    tested = {id_: transition.members[id_].member for id_ in check_.nodes}
    excluded = [
        left
        for left in checking.excluded
        if transition.now_s < left.until_s + MOST_AGAIN_S and not any(map(left.is_of, tested.values()))
    ]
    for id_, (reason, why, peer) in faults.items():
        times = 1 + max((left.times for left in checking.excluded if left.is_of(tested[id_])), default=0)
        until_s = transition.now_s + min(AGAIN_S * 2.0 ** min(times - 1, 64), MOST_AGAIN_S)
        excluded.append(ExcludedNode(tested[id_], reason, why, until_s, times, peer))
    return tuple(excluded)


def log_if_excluded(transition: Transition, id_: str) -> bool:
    """Return True if this new member was excluded and returns too early. Logs it once for each of its lives."""
    left = transition.exclusion(id_)
    if left is not None:
        fields = {"member": left.member.name, "again_s": round(left.until_s - transition.now_s, 3), "detail": left.why}
        transition.log_event("node_kept_out", left.reason, **fields)
    return left is not None


def spare_reason(transition: Transition, id_: str) -> tuple[Reason, str]:
    """Return the reason and detail why a new member waits while a world trains."""
    if (left := transition.exclusion(id_)) is not None:
        return left.reason, left.describe(transition.now_s)
    late = "" if transition.is_ready(id_) else "it still imports: a world that trains is not stopped for it before"
    return Reason.SPARE, late


def _faults(transition: Transition, checking: NodeCheckState, verdict: Verdict) -> Faults:
    """Return the nodes that may not train, with reason and cause, by member id.

    Nodes that proved unfit alone count, bad nodes of the verdict, and slow nodes if these are excluded. An undecided
    group is resolved by an earlier finding.
    """
    faults: Faults = {id_: (Reason.NODE_FAULTY, why, "") for id_, why in checking.unfit.items()}
    for riddle in verdict.undecided:  # a node with an earlier proof is not in doubt
        for id_ in riddle.nodes:
            for left in checking.excluded:
                if left.is_of(transition.members[id_].member) and not left.unreachable_peer:
                    faults[id_] = left.reason, f"{riddle.why}; before: {left.why}"[:MOST_WHY], ""
    slow = verdict.slow_nodes if checking.leaves_slow else ()
    for reason, findings in ((Reason.NODE_SLOW, slow), (Reason.NODE_FAULTY, verdict.bad_nodes)):
        faults |= {finding.nodes[0]: (reason, f"{finding.cause.value}: {finding.why}", "") for finding in findings}
    return _with_bad_links(transition, verdict, faults)


def _with_bad_links(transition: Transition, verdict: Verdict, faults: Faults) -> Faults:
    """Also exclude one end of each bad link while enough members remain: the younger one, never this coordinator."""
    present = sum(
        known.leave_s is None and transition.exclusion(id_) is None for id_, known in transition.members.items()
    )
    for link in (each.nodes for each in verdict.bad_links):
        if faults.keys().isdisjoint(link) and transition.state.job.elastic_spec.world_size(present - len(faults) - 1):
            stays, goes = sorted(
                link, key=lambda id_: (id_ != transition.state.job.member.id, transition.members[id_].member.age)
            )
            name = transition.members[stays].member.name
            faults[goes] = (Reason.LINK_FAULTY, f"it does not reach {name}, and both are good with others", name)
    return faults


def _log_speed(transition: Transition, checking: NodeCheckState) -> None:
    """Log the speed of a collective over all members that passed. Nobody is judged by it. Source: DLRover's
    --comm-perf-test
    """
    (everyone,) = checking.groups
    answers = [checking.results[id_] for id_ in everyone if id_ in checking.results]
    times = [answer.collective_s for answer in answers if answer.collective_s]
    fields: dict[str, object] = {"members": len(everyone)}
    if len(times) < len(everyone):
        faults = sorted({answer.fault for answer in answers if answer.fault} or {"not all have answered"})
        transition.log_event("network_speed", transition.state.cause.reason, **fields, detail="; ".join(faults)[:1_024])
        return
    took_s, bytes_ = max(times), answers[0].reduce_bytes
    ranks = len(everyone) * min(transition.members[id_].member.processes for id_ in everyone)
    fields |= {"ranks": ranks, "collective_s": took_s, "bytes": bytes_}
    # Bus bandwidth as nccl-tests define it: an all-reduce of n moves 2 (n - 1) / n of its bytes.
    algorithm = bytes_ / took_s
    fields |= {"algorithm_bytes_s": round(algorithm), "bus_bytes_s": round(algorithm * 2 * (ranks - 1) / ranks)}
    transition.log_event("network_speed", transition.state.cause.reason, **fields)


def _log_findings(transition: Transition, check_: Check, verdict: Verdict, faults: Faults) -> None:
    """Log each finding of a check, and the members that it excludes."""

    def names(nodes: Group) -> str:
        return ", ".join(transition.members[id_].member.name for id_ in nodes)

    checking = transition.state.checking
    assert checking is not None
    again_s = {left.member.id: left.until_s - transition.now_s for left in checking.excluded}
    for id_, (reason, why, _) in faults.items():
        transition.log_event("node_left_out", reason, member=names((id_,)), detail=why, again_s=again_s.get(id_))
    for each in verdict.slow_nodes:
        transition.log_event(
            "node_slow",
            transition.state.cause.reason,
            member=names(each.nodes),
            cause=each.cause.value,
            detail=each.why,
        )
    for each in verdict.bad_links + verdict.slow_links:
        transition.log_event(
            "link_faulty",
            transition.state.cause.reason,
            members=names(each.nodes),
            cause=each.cause.value,
            detail=each.why,
        )
    for riddle in verdict.undecided:
        transition.log_event(
            "check_undecided", transition.state.cause.reason, members=names(riddle.nodes), detail=riddle.why
        )
    fields = {"members": len(check_.nodes), "left_out": len(faults), "rounds": len(check_.rounds)}
    transition.log_event(
        "check_ended", transition.state.cause.reason, **fields, took_s=round(transition.now_s - checking.began_s, 3)
    )
