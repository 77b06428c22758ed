"""Attacks that a tenant of the namespace `greedy` can make with pods and annotations alone, second by second.

An attack is a function (second, quick) -> pods that the tenant writes in that second. quick: the cluster is small. Each
attacker takes only a few GPUs for itself, and in the run for comparison plain pods take as many. So what the others
lose, they lose by the attack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hack.bench.tenants.objects import GPUS_PER_NODE, Raw, node_name, pod
from turnout.kube import labels

NAMESPACE = "greedy"
RAISES_S = 310  # when members that come no longer count for a gang's start
FLIP_S = 29  # just before the extender's wait of 30 s for a gang's members ends
Attack = Callable[[int, bool], Iterable[Raw]]  # (second, quick) -> pods


def without_annotations(attack: Attack) -> Attack:
    """Return an attack that writes the same pods without annotations and labels."""

    def strip(second: int, quick: bool) -> Iterable[Raw]:
        for each in attack(second, quick):
            yield {**each, "metadata": {**each["metadata"], "annotations": {}, "labels": {}}}

    return strip


def no_attack(second: int, quick: bool) -> Iterable[Raw]:
    """Write no pod."""
    return ()


@dataclass(frozen=True, slots=True)
class NamedAttack:
    """An attack with its name."""

    name: str
    attack: Attack
    fair: str = ""  # why it is no fault if others get less; "" if they must not
    takes: bool = False  # its pods can run, so the run for comparison has the same pods without annotations

    @property
    def comparison(self) -> Attack:
        """Return the attack of the run for comparison: the same pods without annotations, or no pods if they cannot
        run.
        """
        return without_annotations(self.attack) if self.takes else no_attack


def _member(gang: str, index: int, gpus: int, sizes: dict[str, str], at: str = "", life: int = 0) -> Raw:
    """Return a pod of a gang of the attacker.

    gpus: whole GPUs. sizes: annotations about the gang's size. at: its node, "" for a pending pod. life: number of
    earlier pods with its name. index: of the pod in the gang.
    """
    member = pod(NAMESPACE, gang, index, gpus, sizes, life=life)
    if at:
        member["spec"]["nodeName"] = at
    return member


def _sizes(minimum: int, total: int = 0) -> dict[str, str]:
    return {labels.KOORD_MIN: str(minimum), **({labels.KOORD_TOTAL: str(total)} if total else {})}


def _total_of_million(gpus: int) -> Attack:
    """Return an attack that writes one gang of two pods with `gpus` GPUs each, which claims 999,999 members."""

    def attack(second: int, quick: bool) -> Iterable[Raw]:
        if second == 0:
            yield _member("g", 0, gpus, _sizes(1, 999_999), node_name(0))
            yield _member("g", 1, gpus, _sizes(1, 999_999))

    return attack


def _flipping_sizes(second: int, quick: bool) -> Iterable[Raw]:
    """Write a gang that is complete in one turn of FLIP_S seconds, and lacks many members in the next.

    In every second turn it announces as many members as half of the hosts hold. Each turn brings a new pod. second: of
    the attack. quick: the cluster is small.
    """
    if second % FLIP_S == 0:
        turn = second // FLIP_S
        size = _sizes(2, 2) if turn % 2 else _sizes(1, 800 if quick else 4_000)
        yield _member("g", 0, 1, size, node_name(0))
        yield _member("g", 1, 1, size, life=turn)


def _flood(gang_of: Callable[[int], Raw], quick_count: int, count: int) -> Attack:
    """Return an attack that writes many gangs at the start, then changes one of them each second.

    gang_of: returns the pod of a gang by its number. quick_count, count: number of gangs in a quick and in a full run.
    """

    def attack(second: int, quick: bool) -> Iterable[Raw]:
        many = quick_count if quick else count
        for number in range(many) if second == 0 else [second % many]:
            first_pod = gang_of(number)
            first_pod["metadata"]["annotations"]["turn"] = str(second)
            yield first_pod

    return attack


def _equal_gang(number: int) -> Raw:
    """Return the pod of a gang that fits nowhere; all such gangs are equal."""
    return _member(f"g{number}", 0, GPUS_PER_NODE + 1, _sizes(1))


def _distinct_gang(number: int) -> Raw:
    """Return the pod of a gang that fits nowhere; each has another request of CPU."""
    member = _equal_gang(number)
    return _with_request(member, "cpu", f"{1000 + number}m")


def _gang_of_total_1000(number: int) -> Raw:
    """Return the pod of a gang that announces 1,000 members and needs one."""
    return _member(f"g{number}", 0, 0, _sizes(1, 1_000))


def _gang_of_unknown_resource(number: int) -> Raw:
    """Return the pod of a gang that requests a resource which no node has."""
    return _with_request(_member(f"g{number}", 0, 1, _sizes(1)), f"example.com/r{number}", "1")


def _with_request(member: Raw, resource: str, amount: str) -> Raw:
    """Add a resource to a pod's requests and limits; return the pod."""
    asks = member["spec"]["containers"][0]["resources"]
    asks["requests"][resource] = asks["limits"][resource] = amount
    return member


def _hundred_shapes(second: int, quick: bool) -> Iterable[Raw]:
    """Write a gang of a hundred pods with different requests that must lie under one switch; it fits under none."""
    if second == 0:
        notes = _sizes(100) | {labels.TOPOLOGY: "required"}
        for index in range(100):
            yield _with_request(_member("g", index, 8, notes), "cpu", f"{1000 + index}m")


def _invalid_numbers(second: int, quick: bool) -> Iterable[Raw]:
    """Write pods whose numeric annotations and labels hold text that is no number."""
    words = ("\N{SUPERSCRIPT TWO}", "9" * 5_000, "NaN", "[" * 10_000, "-1", "1e99")
    if second < len(words):
        text = words[second]
        notes = {labels.KOORD_MIN: text, labels.KOORD_TOTAL: text, labels.MIN_WORKERS: text, labels.MAX_WORKERS: text}
        notes |= {labels.PODS_PER_HOST_MULTIPLE: text, labels.TOPOLOGY: text, labels.TOPOLOGY_TIER: text}
        yield _member(f"g{second}", 0, 1, notes)


def _half_of_hosts(second: int, quick: bool) -> Iterable[Raw]:
    """Write a gang whose min takes half of the hosts, and of which only two members ever come.

    second: of the attack. quick: the cluster is small.
    """
    if second == 0:
        yield _member("g", 0, 8, _sizes(100 if quick else 500))
        yield _member("g", 1, 8, _sizes(100 if quick else 500))


def _raised_min(second: int, quick: bool) -> Iterable[Raw]:
    """Write a gang of one pod that runs. After RAISES_S seconds add members that say that nine are needed at once."""
    if second == 0:
        yield _member("g", 0, 1, _sizes(1), node_name(0))
    if second == RAISES_S:
        for index in range(8):
            yield _member("g", 1 + index, GPUS_PER_NODE, _sizes(9))


def _high_priority(second: int, quick: bool) -> Iterable[Raw]:
    """Write a gang of a PriorityClass above all others. This shows what the others lose if that is allowed."""
    if second == 0:
        for index in range(40):
            member = _member("g", index, GPUS_PER_NODE, _sizes(40))
            member["spec"]["priority"] = 1_000
            yield member


ATTACKS = (
    NamedAttack("a total of a million, of GPUs", _total_of_million(1), takes=True),
    NamedAttack("a total of a million, of CPUs", _total_of_million(0)),
    NamedAttack("sizes that flip every 29 s", _flipping_sizes, takes=True),
    NamedAttack("many gangs, all alike, that fit nowhere", _flood(_equal_gang, 200, 1_000)),
    NamedAttack("many gangs, no two alike, that fit nowhere", _flood(_distinct_gang, 200, 1_000)),
    NamedAttack("many gangs that hope for a thousand", _flood(_gang_of_total_1000, 60, 300)),
    NamedAttack("many gangs that ask for what no node has", _flood(_gang_of_unknown_resource, 100, 500)),
    NamedAttack("a gang of a hundred shapes under one switch", _hundred_shapes),
    NamedAttack("words that are no numbers", _invalid_numbers, takes=True),
    NamedAttack(
        "a gang that waits for half of the cluster", _half_of_hosts, "room up to a gang's min is kept for 30 s, once"
    ),
    NamedAttack("a started gang that raises its min", _raised_min, takes=True),
    NamedAttack("pods of a high PriorityClass", _high_priority, "an admin has given it that class"),
)
