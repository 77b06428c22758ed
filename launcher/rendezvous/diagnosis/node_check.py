"""Runs the node check before a round (--network-check): members measure in groups, and faulty nodes leave the job.

launcher/health/judge_nodes.py forms the groups and judges the results. A check covers all present members. It starts
again if one of them is lost, or if a member is needed that was not checked. All members that are not proven bad may
train; groups that no test could judge are only reported. If two good nodes cannot reach each other, one of them is
excluded if enough members remain. Source: DL-80 to DL-85
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from zlib import crc32

from turnout.launcher.coordinator_messages import Finish, Judged, NodeResult, Probe, Probed
from turnout.launcher.health.judge_nodes import next_groups_or_verdict
from turnout.launcher.health.model import (
    EXCLUSION_S,
    MAX_EXCLUSION_S,
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
MAX_WHY = 1_024  # characters of a text in a message
# By id of an excluded member: reason, explanation, and the name of the peer that it cannot reach, "" for none.
Faults: TypeAlias = dict[str, tuple[Reason, str, str]]


def checked_members(transition: Transition, candidates: list[MemberState], size: int) -> list[MemberState] | None:
    """Return the candidates that have passed the node check; all candidates if nodes are not checked.

    Returns None if fewer than a world of `size` have passed: a check of all candidates then starts.
    """
    checking = transition.state.checking
    if checking is None:
        return candidates
    passed = [member_state for member_state in candidates if member_state.member.id in checking.passed]
    if transition.state.job.elastic_spec.world_size(len(passed)) >= size:
        return passed
    nodes = tuple(
        member_state.member.id
        for member_state in sorted(candidates, key=lambda member_state: _place(member_state.member))
    )
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
    _order_probes(transition, check, next_groups_or_verdict(check))
    return None


def _place(member: Member) -> tuple[tuple[str, ...], int, str]:
    """Return a sort key by which neighbours in the fabric are adjacent."""
    return member.path, -1 if member.index is None else member.index, member.name


def _order_probes(transition: Transition, check: Check, groups: Groups | Verdict) -> None:
    """Send the members of each group the order for their next probe.

    check: the measurements so far. groups: the next groups, or the verdict. A verdict ends the check, or first orders
    a probe of all good nodes together, if that is set (`all_together`).
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
        for index, id_ in enumerate(group):
            order = Probe(number, index * local, local * len(group), len(group), first.address, first.master_port)
            transition.send((id_,), order)
    transition.wake(until_s)


def record_probe(transition: Transition, id_: str, member_state: MemberState, answer: Probed) -> None:
    """Record one member's measurement, and the free port that it offers for the next group. Ignore stale answers."""
    checking = transition.state.checking
    if checking is None or transition.state.phase is not Phase.CHECKING or answer.number != checking.number:
        return
    transition.set_member(
        id_, replace(member_state, member=replace(member_state.member, master_port=answer.master_port))
    )
    unfit = {**checking.unfit, id_: answer.unfit} if answer.unfit else checking.unfit
    transition.state = replace(
        transition.state, checking=replace(checking, results={**checking.results, id_: answer}, unfit=unfit)
    )


def continue_check(transition: Transition) -> None:
    """Continue the check as far as the results allow: wait for answers, start the next groups, or end with a verdict.

    A member that was lost or leaves cancels the check.
    """
    checking = transition.state.checking
    assert checking is not None
    assert checking.check is not None
    if any(
        (member_state := transition.members.get(id_)) is None or member_state.leave_s is not None
        for id_ in checking.check.nodes
    ):
        _cancel_check(transition, checking)
        return
    if transition.now_s < checking.until_s and any(map(partial(_is_awaited, checking), checking.groups)):
        transition.wake(checking.until_s)
        return
    if checking.verdict is not None:
        _log_collective_bandwidth(transition, checking)
        _end_check(transition, checking.check, checking.verdict)
        return
    results = tuple(result for group in checking.groups for result in _group_results(checking, group))
    after = checking.check.add_round(results)
    _order_probes(transition, after, next_groups_or_verdict(after))


def restart_check(transition: Transition, id_: str) -> None:
    """Cancel the check if a checked member connects again, since its order or its answer may be lost.

    The check starts again at the end of this transition. Does nothing if no check runs.
    """
    checking = transition.state.checking
    if transition.state.phase is Phase.CHECKING and checking and checking.check and id_ in checking.check.nodes:
        _cancel_check(transition, checking)


def _cancel_check(transition: Transition, checking: NodeCheckState) -> None:
    """Cancel the check. At the end of this transition, a new check starts if enough members for a world are present."""
    transition.state = replace(transition.state, phase=Phase.GATHERING, checking=replace(checking, check=None))
    transition.log_event("check_given_up", Reason.MEMBER_LOST)


def _is_awaited(checking: NodeCheckState, group: Group) -> bool:
    """Return True if a member of the group has not answered yet and still can.

    Once a member failed alone, the other members of its group cannot finish.
    """
    answers = [checking.results.get(id_) for id_ in group]
    return None in answers and all(answer is None or answer.compute_s is not None for answer in answers)


def _group_results(checking: NodeCheckState, group: Group) -> tuple[Measured, ...]:
    """Return a group's measurements from its members' answers.

    If a member failed alone, each answer is a measurement of its own, and members without an answer are tested again.
    Otherwise a member that did not answer counts as one whose own computation is stuck.
    """
    answers = {id_: checking.results[id_] for id_ in group if id_ in checking.results}
    if any(answer.compute_s is None for answer in answers.values()):
        return tuple(Measured((id_,), (answer.compute_s,), None) for id_, answer in answers.items())
    known_times = [answer.collective_s for answer in answers.values() if answer.collective_s is not None]
    group_s = max(known_times) if len(known_times) == len(group) else None
    own_times = tuple(answers[id_].compute_s if id_ in answers else None for id_ in group)
    return (Measured(group, own_times, group_s),)


def _end_check(transition: Transition, check_: Check, verdict: Verdict) -> None:
    """End the check: exclude the faulty members, send all findings, and gather the members that passed.

    If all members are faulty or leave, the job finishes with exit code FAULTY.
    """
    state, checking = transition.state, transition.state.checking
    assert checking is not None
    faults = _faults(transition, checking, verdict)
    passed = frozenset(check_.nodes) - faults.keys()
    exclusions = _update_exclusions(transition, checking, check_, faults)
    checking = replace(checking, check=None, groups=(), verdict=None, passed=passed, excluded=exclusions)
    transition.state = replace(state, phase=Phase.GATHERING, checking=checking)
    _log_findings(transition, check_, verdict, faults)
    _send_findings(transition, check_, checking, verdict)
    if all(member_state.leave_s is not None or id_ in faults for id_, member_state in transition.members.items()):
        reason, why, _ = next(iter(faults.values()))
        transition.finish(Exit.FAULTY, reason, why)
        return
    for id_, (reason, why, _) in faults.items():
        transition.set_member(id_, replace(transition.members[id_], leave_s=transition.now_s))
        if id_ != state.job.member.id:  # the coordinator itself hands over first, and its successor checks it
            transition.send((id_,), Finish(int(Exit.FAULTY), reason.value, why[:MAX_WHY]))


def _send_findings(transition: Transition, check_: Check, checking: NodeCheckState, verdict: Verdict) -> None:
    """Send each checked member the result for its node: the worst of faulty, slow, faulty link and fine.

    A node of an undecided group gets a result only if it has a finding of its own, or has reported itself unfit.
    """
    finding_of = dict.fromkeys(check_.nodes, (NodeResult.FINE, "", ""))
    for undecided in verdict.undecided:
        for id_ in undecided.nodes:
            finding_of.pop(id_, None)
    findings = (
        (NodeResult.LINK, verdict.bad_links + verdict.slow_links),
        (NodeResult.SLOW, verdict.slow_nodes),
        (NodeResult.FAULTY, verdict.bad_nodes),
    )
    for result, findings_of_result in findings:
        finding_of |= {
            id_: (result, finding.cause.value, finding.why) for finding in findings_of_result for id_ in finding.nodes
        }
    finding_of |= {id_: (NodeResult.FAULTY, SWITCHBOX, why) for id_, why in checking.unfit.items()}
    ids_by_finding = defaultdict[tuple[NodeResult, str, str], list[str]](list)
    for id_, own_finding in finding_of.items():
        ids_by_finding[own_finding].append(id_)
    state = transition.state
    for (result, cause, why), ids in ids_by_finding.items():
        why = why[:MAX_WHY]
        transition.send(
            ids,
            Judged(
                state.round + 1, result, state.job.member.name, state.job.run[:MAX_WHY], len(check_.nodes), cause, why
            ),
        )


def _update_exclusions(
    transition: Transition, checking: NodeCheckState, check_: Check, faults: Faults
) -> tuple[ExcludedNode, ...]:
    """Return the new list of excluded nodes: the former ones, without those checked now, then those of `faults`.

    A node's first exclusion lasts EXCLUSION_S, each further one in a row twice as long, at most MAX_EXCLUSION_S. An
    exclusion that ended more than MAX_EXCLUSION_S ago is dropped, so the next one is a first one.
    """
    member_of = {id_: transition.members[id_].member for id_ in check_.nodes}
    excluded = [
        exclusion
        for exclusion in checking.excluded
        if transition.now_s < exclusion.until_s + MAX_EXCLUSION_S and not any(map(exclusion.is_of, member_of.values()))
    ]
    for id_, (reason, why, peer) in faults.items():
        times = 1 + max(
            (exclusion.times for exclusion in checking.excluded if exclusion.is_of(member_of[id_])), default=0
        )
        until_s = transition.now_s + min(EXCLUSION_S * 2.0 ** min(times - 1, 64), MAX_EXCLUSION_S)
        excluded.append(ExcludedNode(member_of[id_], reason, why, until_s, times, peer))
    return tuple(excluded)


def exclusion_of(transition: Transition, id_: str) -> ExcludedNode | None:
    """Return a present member's exclusion by a node check while it lasts, else None.

    An exclusion for a bad link to a peer counts only while that peer is present.
    """
    checking, member = transition.state.checking, transition.members[id_].member
    for exclusion in checking.excluded if checking is not None else ():
        peer = exclusion.unreachable_peer
        peer_is_back = not peer or transition.id_of(peer) in transition.members
        if transition.now_s < exclusion.until_s and peer_is_back and exclusion.is_of(member):
            return exclusion
    return None


def ready_time_s(transition: Transition, id_: str) -> float:
    """Return the time from which a world may be stopped to add this member: then it has finished its imports and is no
    longer excluded.
    """
    member_state, exclusion = transition.members[id_], exclusion_of(transition, id_)
    return member_state.ready_s if exclusion is None else max(member_state.ready_s, exclusion.until_s)


def is_ready(transition: Transition, id_: str) -> bool:
    """Return True if the member can start processes now, by its own report, and no node check excludes it.

    Always True for a member of the newest world.
    """
    return ready_time_s(transition, id_) <= transition.now_s or transition.state.is_in_world(id_)


def log_if_excluded(transition: Transition, id_: str) -> bool:
    """Return True if this new member's node is still excluded, and log that."""
    exclusion = exclusion_of(transition, id_)
    if exclusion is not None:
        fields = {
            "member": exclusion.member.name,
            "again_s": round(exclusion.until_s - transition.now_s, 3),
            "detail": exclusion.why,
        }
        transition.log_event("node_kept_out", exclusion.reason, **fields)
    return exclusion is not None


def wait_reason(transition: Transition, id_: str) -> tuple[Reason, str]:
    """Return (reason, detail) why a member that is not in the training world waits.

    The reason and description of its exclusion while a node check excludes it; else Reason.SPARE, with a detail only if
    the member still imports modules. id_: a present member that is not in the world.
    """
    if (exclusion := exclusion_of(transition, id_)) is not None:
        return exclusion.reason, exclusion.describe(transition.now_s)
    detail = (
        ""
        if is_ready(transition, id_)
        else "it still imports modules; a training world is stopped for it only after that"
    )
    return Reason.SPARE, detail


def _faults(transition: Transition, checking: NodeCheckState, verdict: Verdict) -> Faults:
    """Return the nodes that may not train, with the reasons, by member id.

    These are: nodes that reported themselves unfit, bad nodes of the verdict, slow nodes if the job excludes them, and
    nodes of an undecided group that are still excluded by an earlier check.
    """
    faults: Faults = {id_: (Reason.NODE_FAULTY, why, "") for id_, why in checking.unfit.items()}
    for undecided in verdict.undecided:  # a node with an earlier proof is not in doubt
        for id_ in undecided.nodes:
            for exclusion in checking.excluded:
                if exclusion.is_of(transition.members[id_].member) and not exclusion.unreachable_peer:
                    faults[id_] = exclusion.reason, f"{undecided.why}; before: {exclusion.why}"[:MAX_WHY], ""
    slow = verdict.slow_nodes if checking.leaves_slow else ()
    for reason, findings in ((Reason.NODE_SLOW, slow), (Reason.NODE_FAULTY, verdict.bad_nodes)):
        faults |= {finding.nodes[0]: (reason, f"{finding.cause.value}: {finding.why}", "") for finding in findings}
    return _add_bad_links(transition, verdict, faults)


def _add_bad_links(transition: Transition, verdict: Verdict, faults: Faults) -> Faults:
    """Add one end of each bad link to `faults` while enough members remain; return `faults`.

    The younger end is excluded, but never this coordinator.
    """
    present = sum(
        member_state.leave_s is None and exclusion_of(transition, id_) is None
        for id_, member_state in transition.members.items()
    )
    for link in (each.nodes for each in verdict.bad_links):
        if faults.keys().isdisjoint(link) and transition.state.job.elastic_spec.world_size(present - len(faults) - 1):
            remaining_end, excluded_end = sorted(
                link, key=lambda id_: (id_ != transition.state.job.member.id, transition.members[id_].member.age)
            )
            name = transition.members[remaining_end].member.name
            faults[excluded_end] = (
                Reason.LINK_FAULTY,
                f"it does not reach {name}, and both are good with others",
                name,
            )
    return faults


def _log_collective_bandwidth(transition: Transition, checking: NodeCheckState) -> None:
    """Log the all-reduce bandwidth over all good nodes, or why it was not measured. No node is excluded for it.

    Precondition: the last probe was that of all good nodes together, so `checking.groups` has exactly one group.

    Source: DLRover's --comm-perf-test
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
        """Return the workers' names of these members."""
        return ", ".join(transition.members[id_].member.name for id_ in nodes)

    checking = transition.state.checking
    assert checking is not None
    again_s = {exclusion.member.id: exclusion.until_s - transition.now_s for exclusion in checking.excluded}
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
    for undecided in verdict.undecided:
        transition.log_event(
            "check_undecided", transition.state.cause.reason, members=names(undecided.nodes), detail=undecided.why
        )
    fields = {"members": len(check_.nodes), "left_out": len(faults), "rounds": len(check_.rounds)}
    transition.log_event(
        "check_ended", transition.state.cause.reason, **fields, took_s=round(transition.now_s - checking.began_s, 3)
    )
