"""Which devices a job asks for that no node has: such a job waits for ever, most often for a device plugin.

Source: MS-36
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from turnout.controllers.model import JobView, Object
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount

_MAX_NAMES = 8  # names in a text


def extended(quantities: Any) -> frozenset[str]:
    """Return the names of extended resources of which there is any: those of a domain that is not Kubernetes's."""
    found = quantities.items() if isinstance(quantities, Mapping) else ()
    return frozenset(name for name, quantity in found if _is_extended(name) and _is_some(name, quantity))


def not_offered(view: JobView, offered: frozenset[str]) -> list[str]:
    """Say of each role which devices it asks for that no node offers. offered: by all nodes together."""
    texts = []
    for role in view.roles:
        missing = sorted(_device_requests(role.template) - offered) if role.replicas else []
        if missing:
            have = _named(sorted(offered)) or "no extended resource at all"
            texts.append(
                f"{role.name} asks for {_named(missing)}, which no node offers: nodes offer {have}. Is the device "
                "plugin installed, with its container runtime, and is the name right?"
            )
    return texts


def _device_requests(template: Object) -> frozenset[str]:
    parts = [each.get("resources") for each in template["spec"]["containers"]]
    resources = [each for each in parts if isinstance(each, Mapping)]
    return frozenset(name for each in resources for part in ("limits", "requests") for name in extended(each.get(part)))


def _is_extended(name: Any) -> bool:
    domain, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _is_some(name: str, quantity: Any) -> bool:
    try:
        return amount(name, quantity) > 0
    except (BadQuantity, TypeError, AttributeError):
        return False


def _named(names: Iterable[str]) -> str:
    names = [each[:100] for each in names]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
