"""The order of an admin for all jobs at once, in a ConfigMap: `turnout pause --all` writes it."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.autoscaler.model import AdminOverride
from turnout.kube.times import unix_s

OVERRIDE_KEY, UNTIL_KEY = "standing", "until"


def read_admin_override(data: Mapping[str, str]) -> tuple[AdminOverride, float | None]:
    """Return the order and its end, in seconds since 1970. An unknown word stops all changes, which is safest."""
    text = data.get(OVERRIDE_KEY, AdminOverride.RUN.value).strip()
    words = {each.value: each for each in AdminOverride}
    return words.get(text, AdminOverride.PAUSE), unix_s(data[UNTIL_KEY].strip()) if data.get(UNTIL_KEY) else None


def admin_override_data(override: AdminOverride, until: str = "") -> dict[str, str]:
    """Return the data of the ConfigMap with this order."""
    return {OVERRIDE_KEY: override.value, **({UNTIL_KEY: until} if until else {})}
