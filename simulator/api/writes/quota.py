"""Enforce a namespace's ResourceQuotas: a pod that would exceed one is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from turnout.kube.errors import KubeError
from turnout.kube.quantity import milli
from turnout.simulator.api.errors import ApiRefusal
from turnout.simulator.api.model import Object

_PODS = ("pods", "count/pods")
_PARTS = ("requests", "limits")


def check_quotas(pod: Object, pods: Iterable[Object], quotas: Iterable[Object]) -> None:
    """Check a new pod against the quotas. Raises ApiRefusal (403).

    pods: those of the namespace; pods that have ended do not count.
    """
    living = [each for each in pods if (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    for quota in quotas:
        hard = {name: _amount(text) for name, text in ((quota.get("spec") or {}).get("hard") or {}).items()}
        requested, used = _requested_amounts(pod), Counter[str]()
        for each in living:
            used.update(_requested_amounts(each))
        over = sorted(name for name, most in hard.items() if requested[name] and used[name] + requested[name] > most)
        if over:
            raise ApiRefusal(
                "Forbidden", _sentence(pod, quota, {name: (requested[name], used[name], hard[name]) for name in over})
            )


def _sentence(pod: Object, quota: Object, over: dict[str, tuple[int, int, int]]) -> str:
    words = ("requested", "used", "limited")
    sums = ", ".join(
        f"{word}: " + ",".join(f"{name}={amounts[at] / 1000:g}" for name, amounts in over.items())
        for at, word in enumerate(words)
    )
    return f'pods "{pod["metadata"]["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {sums}'


def _requested_amounts(pod: Object) -> Counter[str]:
    """Return what a pod counts for, in thousandths, by the names that quotas use."""
    found = Counter(dict.fromkeys(_PODS, 1000))
    for container in (pod.get("spec") or {}).get("containers") or ():
        for part in _PARTS:
            for resource, text in ((container.get("resources") or {}).get(part) or {}).items():
                found[f"{part}.{resource}"] += _amount(text)
                if part == "requests" and resource in ("cpu", "memory"):
                    found[resource] += _amount(text)
    return found


def _amount(text: object) -> int:
    try:
        return milli(text if isinstance(text, str | int | float) else str(text))
    except KubeError:
        return 0
