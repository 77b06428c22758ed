"""Attacks that a tenant of the namespace `greedy` can make with pods and annotations alone, second by second.

An attack is a function from the second to the pods to write, as they are from then on. Each attacker takes only a few
GPUs for itself, and the run beside which it is held has plain pods that take as many. So what the others lose, they
lose by the attack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hack.bench.tenants.objects import GPUS_PER_NODE, Raw, node_name, pod
from turnout.kube import labels

NAMESPACE = "greedy"
RAISES_S = 310  # when members that come no longer count for a gang's start
FLIP_S = 29  # just before what is waited for is waited for no longer
Attack = Callable[[int, bool], Iterable[Raw]]  # (second, quick) -> pods


def plain(attack: Attack) -> Attack:
    """Return the pods of an attack with nothing written on them."""

    def silent(second: int, quick: bool) -> Iterable[Raw]:
        for made in attack(second, quick):
            yield {**made, "metadata": {**made["metadata"], "annotations": {}, "labels": {}}}

    return silent


def nothing(second: int, quick: bool) -> Iterable[Raw]:
    """Write no pod."""
    return ()


@dataclass(frozen=True, slots=True)
class Named:
    """An attack with its name."""

    name: str
    attack: Attack
    fair: str = ""  # why others may get less beside it; "" when they may not
    takes: bool = False  # its pods can run: the run without it has the same pods with nothing said on them

    @property
    def beside(self) -> Attack:
        """The pods of the run that this one is held beside."""
        return plain(self.attack) if self.takes else nothing


def _member(gang: str, index: int, gpus: int, sizes: dict[str, str], at: str = "", life: int = 0) -> Raw:
    """Return a pod of a gang. at: its node, "" for a pending pod. life: number of earlier pods with its name."""
    made = pod(NAMESPACE, gang, index, gpus, sizes, life=life)
    if at:
        made["spec"]["nodeName"] = at
    return made


def _sizes(least: int, total: int = 0) -> dict[str, str]:
    return {labels.KOORD_MIN: str(least), **({labels.KOORD_TOTAL: str(total)} if total else {})}


def _million(gpus: int) -> Attack:
    """Return the attack of a gang that claims 999,999 members."""

    def attack(second: int, quick: bool) -> Iterable[Raw]:
        if second == 0:
            yield _member("g", 0, gpus, _sizes(1, 999_999), node_name(0))
            yield _member("g", 1, gpus, _sizes(1, 999_999))

    return attack


def _flips(second: int, quick: bool) -> Iterable[Raw]:
    """Give a gang that is complete in one turn and lacks many members in the next.

    In every second turn it announces as many members as half of the hosts hold. Each turn brings a new pod.
    """
    if second % FLIP_S == 0:
        turn = second // FLIP_S
        size = _sizes(2, 2) if turn % 2 else _sizes(1, 800 if quick else 4_000)
        yield _member("g", 0, 1, size, node_name(0))
        yield _member("g", 1, 1, size, life=turn)


def _flood(gang_of: Callable[[int], Raw], quick_count: int, count: int) -> Attack:
    """Give many gangs at the start, then write one of them anew each second."""

    def attack(second: int, quick: bool) -> Iterable[Raw]:
        many = quick_count if quick else count
        for number in range(many) if second == 0 else [second % many]:
            made = gang_of(number)
            made["metadata"]["annotations"]["turn"] = str(second)
            yield made

    return attack


def _alike(number: int) -> Raw:
    return _member(f"g{number}", 0, GPUS_PER_NODE + 1, _sizes(1))


def _unlike(number: int) -> Raw:
    made = _alike(number)
    return _asking(made, "cpu", f"{1000 + number}m")


def _hoping(number: int) -> Raw:
    return _member(f"g{number}", 0, 0, _sizes(1, 1_000))


def _made_up(number: int) -> Raw:
    return _asking(_member(f"g{number}", 0, 1, _sizes(1)), f"example.com/r{number}", "1")


def _asking(made: Raw, resource: str, amount: str) -> Raw:
    asks = made["spec"]["containers"][0]["resources"]
    asks["requests"][resource] = asks["limits"][resource] = amount
    return made


def _shapes(second: int, quick: bool) -> Iterable[Raw]:
    """Yield a gang of a hundred shapes that must lie under one switch and fits under none."""
    if second == 0:
        notes = _sizes(100) | {labels.TOPOLOGY: "required"}
        for index in range(100):
            yield _asking(_member("g", index, 8, notes), "cpu", f"{1000 + index}m")


def _nonsense(second: int, quick: bool) -> Iterable[Raw]:
    """Give pods whose numeric annotations and labels hold text that is no number."""
    words = ("\N{SUPERSCRIPT TWO}", "9" * 5_000, "NaN", "[" * 10_000, "-1", "1e99")
    if second < len(words):
        text = words[second]
        notes = {labels.KOORD_MIN: text, labels.KOORD_TOTAL: text, labels.MIN_WORKERS: text, labels.MAX_WORKERS: text}
        notes |= {labels.PODS_PER_HOST_MULTIPLE: text, labels.TOPOLOGY: text, labels.TOPOLOGY_TIER: text}
        yield _member(f"g{second}", 0, 1, notes)


def _holds(second: int, quick: bool) -> Iterable[Raw]:
    """Give a started gang whose min takes half of the hosts and whose other members never come."""
    if second == 0:
        yield _member("g", 0, 8, _sizes(100 if quick else 500))
        yield _member("g", 1, 8, _sizes(100 if quick else 500))


def _raises(second: int, quick: bool) -> Iterable[Raw]:
    """Give a gang that runs, and says long after its start that it needs many more members at once."""
    if second == 0:
        yield _member("g", 0, 1, _sizes(1), node_name(0))
    if second == RAISES_S:
        for index in range(8):
            yield _member("g", 1 + index, GPUS_PER_NODE, _sizes(9))


def _important(second: int, quick: bool) -> Iterable[Raw]:
    """Give a gang that a PriorityClass puts before all others: it shows what these figures look like where it may."""
    if second == 0:
        for index in range(40):
            made = _member("g", index, GPUS_PER_NODE, _sizes(40))
            made["spec"]["priority"] = 1_000
            yield made


ATTACKS = (
    Named("a total of a million, of GPUs", _million(1), takes=True),
    Named("a total of a million, of CPUs", _million(0)),
    Named("sizes that flip every 29 s", _flips, takes=True),
    Named("many gangs, all alike, that fit nowhere", _flood(_alike, 200, 1_000)),
    Named("many gangs, no two alike, that fit nowhere", _flood(_unlike, 200, 1_000)),
    Named("many gangs that hope for a thousand", _flood(_hoping, 60, 300)),
    Named("many gangs that ask for what no node has", _flood(_made_up, 100, 500)),
    Named("a gang of a hundred shapes under one switch", _shapes),
    Named("words that are no numbers", _nonsense, takes=True),
    Named("a gang that waits for half of the cluster", _holds, "room up to a gang's min is kept for 30 s, once"),
    Named("a started gang that raises its min", _raises, takes=True),
    Named("pods of a high PriorityClass", _important, "an admin has given it that class"),
)
