"""A gang: its members, its groups, its levels, and how many of its members must start together.

The numbers come from three sources that may disagree: the PodGroup or owner, the annotations of the pods, and the pods
that exist.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from turnout.jobs.gang import Dialect, GangKey, Repair, most_patient
from turnout.jobs.wishes.model import NOTHING, GroupRule, Level, Wish
from turnout.scheduler_ext.cluster.gang_terms import GangTerms, common_multiple, terms_of_gang
from turnout.scheduler_ext.cluster.member import GangMember


@dataclass(frozen=True, slots=True, order=True)
class GangGroup:
    """One group of a gang."""

    rule: int  # the index of the gang's rule that makes the group
    label_values: tuple[str, ...]  # the values of the rule's labels, or the number of its run of ranks
    tier: int | None = None  # the widest tier allowed; None where it only prefers nearness
    exclusive: bool = False  # True if it shares no domain of its tier with another group
    all_or_nothing: bool = True  # True if it starts whole or not at all


def _matches(rule: GroupRule, one_of: Set[tuple[str, str]], pod_labels: Mapping[str, str]) -> bool:
    """Return True if a member is in the groups of a rule: it has all labels and all keys of the rule.

    one_of: (key, value) pairs of the rule, of which the member needs at least one; empty: none is needed. pod_labels:
    the member's labels, key -> value.
    """
    if any(pod_labels.get(key) != value for key, value in rule.match_labels) or not all(
        key in pod_labels for key in rule.keys
    ):
        return False
    return not one_of or not one_of.isdisjoint(pod_labels.items())


def group_members(
    rules: Sequence[GroupRule], members: Iterable[GangMember], tier_of: Callable[[Level], int]
) -> dict[str, GangGroup]:
    """Return uid -> group of each member that matches a rule. The first matching rule counts; other members are
    absent.

    rules: of the gang. members: sorted by `rank_sort_key`. tier_of: returns the tier of a rule's level. A rule with a
    size and no keys cuts its members by rank into groups of that size. A member without a rank counts by its place
    among the members of the rule.
    """
    found: dict[str, GangGroup] = {}
    counts, one_of = [0] * len(rules), [set(rule.one_of) for rule in rules]
    for member in members:
        pod_labels = dict(member.membership.group_labels)
        for at, rule in enumerate(rules):
            if not _matches(rule, one_of[at], pod_labels):
                continue
            name = tuple(pod_labels[key] for key in rule.keys)
            if not rule.keys and rule.size:
                index = member.membership.rank if member.membership.rank is not None else counts[at]
                name = (str(index // rule.size),)
            counts[at] += 1
            tier = None if rule.level is None else tier_of(rule.level)
            found[member.uid] = GangGroup(at, name, tier, rule.exclusive, rule.all_or_nothing)
            break
    return found


@dataclass(frozen=True, slots=True)
class Sizing:
    """The sizes of a gang that its PodGroup or owner states."""

    min_pods: int | None  # members that must start together; None or 0: not stated
    total: int | None  # all members; None: not stated
    uid: str  # of the PodGroup or owner
    created: str  # RFC 3339
    name: str = ""  # of the PodGroup or owner
    wish: Wish = NOTHING  # for the gang's place
    queue: str = ""  # the name of its queue, "" for none
    min_by_role: tuple[tuple[str, int], ...] = ()  # (role, how many of its pods must start)
    lacks_parent: bool = False  # the PodGroup names a CompositePodGroup that is not known


@dataclass(frozen=True, slots=True)
class _MemberSummary:
    """The statements of all members of a gang."""

    wishes: Sequence[Wish]  # the different wishes
    min_pods: int  # members that must start together; 0 if none states it
    total: int  # all members; 0 if none states it
    max_pods: int  # the largest size of the gang; 0 if none states it
    multiples: tuple[int, ...]  # the different multiples of pods on one host, sorted, each >= 1
    queue: str  # the name of the queue, "" for none
    parent_set: str  # the JobSet or LeaderWorkerSet above the gang, "" for none
    names_pod_group: bool  # True if a member names a PodGroup that must exist


def _summarize(members: Sequence[GangMember]) -> _MemberSummary:
    """Merge the statements of a gang's members: the largest number and the first text of each kind count.

    All different wishes and multiples are returned. A number that no member states is 0, a text "".
    """
    memberships = [member.membership for member in members]
    return _MemberSummary(
        wishes=list(dict.fromkeys(membership.wish for membership in memberships if membership.wish.source)),
        min_pods=_largest(membership.min_members for membership in memberships),
        total=_largest(membership.total for membership in memberships),
        max_pods=_largest(membership.max_size for membership in memberships),
        multiples=tuple(sorted({membership.wish.multiple for membership in memberships})),
        queue=_first_text(membership.queue for membership in memberships),
        parent_set=_first_text(membership.parent_set for membership in memberships),
        names_pod_group=any(membership.names_pod_group for membership in memberships),
    )


def _largest(numbers: Iterable[int | None]) -> int:
    return max((number or 0 for number in numbers), default=0)


def _first_text(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def by_number(level: Level) -> int | None:
    """Return the tier of a level that is a number; None for any other."""
    return level if isinstance(level, int) else None


@dataclass(slots=True)
class Gang:
    """The members of one gang by uid, and the number that must start together."""

    key: GangKey
    # the resourceVersion of the first member: orders gangs of one second (comparable by KEP-5504; equal on every
    # replica that watched then)
    version: int
    sizing: Sizing | None = None  # None if no PodGroup or owner is known
    tier_of: Callable[[Level], int | None] = by_number  # a level's tier in the map; None for one that is not there
    members: dict[str, GangMember] = field(default_factory=dict)  # by uid
    started_s: float | None = None  # when a member first held a host, by the monotonic clock
    min_pods_at_start: int = 0  # the min at the start; a larger min that is stated later has no effect on the order
    multiple_at_start: int = 1  # the multiple of pods on a host at the start; the same holds for a larger multiple
    # required level -> the widest tier allowed, where the gang is planned in one domain of a node label (`levels.py`)
    label_tiers: Mapping[Level, int] = field(default_factory=dict)
    _cached_summary: _MemberSummary | None = field(
        default=None, init=False, repr=False, compare=False
    )  # None: to be gathered
    # what `terms` was merged from, and the terms
    _cached_terms: tuple[_MemberSummary, Sizing | None, GangTerms] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _cached_living: Sequence[GangMember] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def _summary(self) -> _MemberSummary:
        """Return the merged statements of the members, cached until members change.

        They are read dozens of times a request.
        """
        if self._cached_summary is None:
            self._cached_summary = _summarize(list(self.members.values()))
        return self._cached_summary

    def join(self, member: GangMember) -> None:
        """Add a member, or replace the member that has the same uid."""
        before = self.members.get(member.uid)
        self.members[member.uid] = member
        self._cached_living = None
        if before is None or not member.differs_only_in_place(before):
            self._cached_summary = None

    def leave(self, uid: str) -> bool:
        """Remove a member. Return True if it was one; False, with nothing changed, if no member has this uid."""
        self._cached_summary = self._cached_living = None
        return self.members.pop(uid, None) is not None

    def note_member_has_host(self, now_s: float, patience_s: float) -> None:
        """Record that a member holds a host; may be called again.

        The first call sets `started_s`. Each call within `patience_s` seconds from then copies the stated min and
        multiple to `min_pods_at_start` and `multiple_at_start`; later calls change nothing. now_s: by the monotonic
        clock.
        """
        if self.started_s is None:
            self.started_s = now_s
        if now_s - self.started_s <= patience_s:
            self.min_pods_at_start, self.multiple_at_start = self.min_pods, self.multiple

    @property
    def min_pods_to_finish(self) -> int:
        """The min up to which a started gang comes before other gangs."""
        return self.min_pods if self.started_s is None else min(self.min_pods, self.min_pods_at_start)

    def waiting(self) -> list[GangMember]:
        """Return the members without a node that are not being deleted, sorted by role (masters first), rank and
        name.
        """
        return sorted((m for m in self.members.values() if m.is_waiting), key=rank_sort_key)

    @property
    def stated_terms(self) -> object:
        """A value of all that its PodGroup, owner and pods state: a plan is valid while the value stays equal."""
        sizes = self.min_pods, self.total, self.max_pods, self.min_by_role
        terms, sets = self.terms, self.terms.sets
        nearness = self.tier, self.multiple, self.layers, terms.group_rules, self.mesh, terms.balanced, self.fills_holes
        together = sets.together_name, sets.together_size, sets.one_domain
        return sizes, nearness, self.exclusive_tier, self.exclusive_set, together, terms.ancestors, self.repair

    @property
    def min_by_role(self) -> tuple[tuple[str, int], ...]:
        """The number of pods of each role that must start, from the PodGroup: (role, pods); () if none is stated.

        As in Volcano, such numbers count only if the gang's own min covers all of them.
        """
        roles = self.sizing.min_by_role if self.sizing is not None else ()
        return roles if not roles or self.min_pods >= sum(count for _, count in roles) else ()

    def could_start(self, *, gates_lifted: bool) -> bool:
        """Return True if a member without a gate of other programs waits, and enough such members exist.

        Enough: one of them has a node, or they reach the gang's min and the min of each role. gates_lifted: True if our
        gates will be lifted, so that members with our gate alone count. A gang of gated pods that cannot start gets no
        room: its owner could hold the room for any time by a gate.
        """
        startable = [m for m in self.living() if not m.gated or (m.has_only_our_gate and gates_lifted)]
        is_enough = any(m.node for m in startable) or self._reaches_min(startable)
        return is_enough and any(m.is_waiting for m in startable)

    def _reaches_min(self, members: Sequence[GangMember]) -> bool:
        """Return True if these members are at least as many as must start together, in total and of each role."""
        roles = Counter(m.membership.role for m in members)
        return len(members) >= self.min_pods and all(roles[role] >= count for role, count in self.min_by_role)

    def living(self) -> Sequence[GangMember]:
        """Return the members that are not being deleted, waiting ones included.

        The list is cached: do not change it.
        """
        if self._cached_living is None:
            self._cached_living = [member for member in self.members.values() if not member.terminating]
        return self._cached_living

    @property
    def is_unsized(self) -> bool:
        """True if no PodGroup or owner of the gang is known, and its pods do not state how many start together."""
        return self.sizing is None and not self._summary.min_pods

    @property
    def lacks_pod_group(self) -> bool:
        """True if the pods name a PodGroup that is not known, and do not state how many start together."""
        return self.is_unsized and self.key.dialect not in (Dialect.OWNER.value, Dialect.ALONE.value)

    @property
    def names_missing_pod_group(self) -> bool:
        """True if the pods name a PodGroup that is not known. It may have terms that the pods do not state.

        Also true if the PodGroup is known, and it or a CompositePodGroup above it names a parent that is not known.
        """
        return self._summary.names_pod_group if self.sizing is None else self.sizing.lacks_parent

    @property
    def has_accelerators(self) -> bool:
        """True if any member asks for an accelerator."""
        return any(m.gpus for m in self.members.values())

    @property
    def min_pods(self) -> int:
        """The number of members that must start together: the PodGroup's min, else the pods' own statement.

        When nothing is stated, it is `total`: all must start together. Plain pods of a Job or StatefulSet are an
        exception: they start one by one (0), unless the gang must stay within a tier, or in layers or groups.
        """
        if self.sizing is not None and self.sizing.min_pods:
            return self.sizing.min_pods
        stated = self._summary.min_pods
        one_by_one = self.key.dialect == Dialect.OWNER.value and not (
            self.terms.requires_level or self.layers or self.terms.group_rules
        )
        return stated or (0 if one_by_one else self.total)

    @property
    def terms(self) -> GangTerms:
        """The placement terms of its PodGroup and members. They change only with `sizing` and the members."""
        summary, sizing, cached = self._summary, self.sizing, self._cached_terms
        if cached is None or cached[0] is not summary or cached[1] is not sizing:
            own = NOTHING if sizing is None else sizing.wish
            cached = self._cached_terms = summary, sizing, terms_of_gang(own, summary.wishes, summary.multiples)
        return cached[2]

    @property
    def tier(self) -> int | None:
        """The widest tier allowed: the narrowest tier that its PodGroup or a member states in any dialect.

        None when the gang only prefers nearness. An unknown level counts as a leaf.
        """
        levels = self.terms.required_levels
        return min((self.label_tiers.get(level, self.known_tier(level)) for level in levels), default=None)

    @property
    def multiple(self) -> int:
        """On each host the number of pods is a multiple of this number; the remainder of all pods may be on one host.

        It is the least common multiple of the multiples of the PodGroup and of all pods, and of the sizes of runs of
        ranks on one host. If the least common multiple is above MAX_MULTIPLE, it is the largest of the numbers.
        """
        terms = self.terms
        on_one_host = [layer.size for layer in terms.layers_of_wishes if self.known_tier(layer.level) == 0]
        return common_multiple([*terms.multiples, *on_one_host]) if on_one_host else terms.multiple

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """The runs of ranks that stay under one switch each: (tier of the switch, ranks of a run), the outermost first.

        A run in a wider domain than the runs around it is ignored, and so is a run on one host.
        """
        found: list[tuple[int, int]] = []
        for layer in self.terms.layers:
            tier = self.known_tier(layer.level)
            if tier > 0 and (not found or tier < found[-1][0]):
                found.append((tier, layer.size))
        return tuple(found)

    def groups_by_uid(self) -> dict[str, GangGroup]:
        """Return uid -> group of the living members that are in a group; other members are absent."""
        rules = self.terms.group_rules
        return group_members(rules, sorted(self.living(), key=rank_sort_key), self.known_tier) if rules else {}

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """The mesh of parallelism: (axis, ranks along it), the outermost axis first. () without a mesh, and with runs
        of ranks.
        """
        return () if self.layers else self.terms.mesh

    @property
    def exclusive_set(self) -> str:
        """The name of the set whose gangs share no domain: the first that its PodGroup or a member states.

        If none states it, the JobSet or LeaderWorkerSet that contains the gang; "" for none.
        """
        return self.terms.sets.exclusive_set or self._summary.parent_set

    @property
    def exclusive_tier(self) -> int | None:
        """The widest tier at which the gang shares no domain with another gang of its exclusive set.

        None if no exclusive level is stated, or the gang is in no such set. An unknown level counts as a leaf.
        """
        if not self.exclusive_set:
            return None
        return max((self.known_tier(level) for level in self.terms.sets.exclusive_levels), default=None)

    @property
    def queue(self) -> str:
        """The queue that the gang waits in: its PodGroup's, else a member's; "" for none."""
        if self.sizing is not None and self.sizing.queue:
            return self.sizing.queue
        return self._summary.queue

    @property
    def repair(self) -> Repair:
        """The remedy for the gang once it is below its min and finds no room for the rest.

        Of the repairs that its members state, the most patient; WAIT if none states one.
        """
        return most_patient(m.membership.repair for m in self.members.values() if m.membership.repair is not None)

    @property
    def fills_holes(self) -> bool:
        """True if the gang prefers the smallest holes wherever they are, and has no required level."""
        return self.terms.fills_holes and not self.has_any_level

    @property
    def has_any_level(self) -> bool:
        """True if the gang, its groups or its runs of ranks must stay within a level."""
        return self.terms.places_all_members or bool(self.layers)

    def known_tier(self, level: Level) -> int:
        """Return the tier of a level. An unknown level counts as a leaf."""
        tier = self.tier_of(level)
        return 1 if tier is None else tier

    @property
    def expected_pods(self) -> int:
        """The number of members that the owner, PodGroup or pods announce, at least the min; 0 if none of them states a
        number.
        """
        total, floor = self._summary.total, self._summary.min_pods
        if self.sizing is not None and self.sizing.total:
            total = self.sizing.total
        if self.sizing is not None and self.sizing.min_pods:  # the pods cannot raise the min of their PodGroup
            floor = self.sizing.min_pods
        return max(total, floor)

    @property
    def total(self) -> int:
        """The number of members that the gang will have: the expected number, but at least the members that exist or
        must start.
        """
        return max(self.expected_pods, len(self.living()))

    @property
    def max_pods(self) -> int:
        """The largest number of members to which the gang may grow, by its pods; at least `total`."""
        return max(self.total, self._summary.max_pods)

    @property
    def priority(self) -> int:
        """The lowest priority of its members; members that are being deleted do not count. 0 if no other is left.

        One member of a high priority raises no other, because quotas on a priority class count single pods.
        """
        return min((m.priority for m in self.members.values() if not m.terminating), default=0)

    @property
    def age(self) -> tuple[str, int, str]:
        """The sort key of gangs by age: (created, version, uid).

        created (RFC 3339) and uid are those of the object that states the gang's size, if it is known; else of the
        oldest member, "" and "" for a gang without members. version: the resourceVersion of the first known pod.
        """
        if self.sizing is not None:
            return self.sizing.created, self.version, self.sizing.uid
        created, uid = min(((m.created, m.uid) for m in self.members.values()), default=("", ""))
        return created, self.version, uid


def waiting_gangs(gangs: Iterable[Gang]) -> Iterator[Gang]:
    """Yield the gangs with a waiting member, in their order."""
    return (gang for gang in gangs if any(member.is_waiting for member in gang.members.values()))


def rank_sort_key(member: GangMember) -> tuple[str, float, str]:
    """Return the sort key of a member: by role, then by rank, then by name.

    Ranks count within a role, and members without a rank come last. Masters have the role "" and so come first.
    """
    rank = member.membership.rank
    return member.membership.role, rank if rank is not None else math.inf, member.name


class GangChanges:
    """The gangs that changed since their plans were updated, and how."""

    def __init__(self) -> None:
        # uids of the members that got a node or took one; None where the gang has changed in any other way, too
        self._placed_uids: dict[GangKey, set[str] | None] = {}

    def add(self, key: GangKey) -> None:
        """Note that a gang has changed in any way."""
        self._placed_uids[key] = None

    def add_placed(self, key: GangKey, uid: str) -> None:
        """Note that only the node or the nomination of one member has changed.

        An earlier `add` of the gang stays in force.
        """
        if (uids := self._placed_uids.setdefault(key, set())) is not None:
            uids.add(uid)

    def placed_uids(self, key: GangKey) -> set[str] | None:
        """Return the uids of the members whose place is all that has changed in a gang: the stored set itself.

        None if the gang has changed in another way, too, or not at all.
        """
        return self._placed_uids.get(key)

    def clear(self) -> None:
        """Forget all changes."""
        self._placed_uids.clear()

    def __iter__(self) -> Iterator[GangKey]:
        return iter(self._placed_uids)
