"""The order of an admin for all jobs at once, in a ConfigMap: `turnout pause --all` writes it."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.autoscaler.model import AdminOverride
from turnout.kube.times import unix_s

STANDING, UNTIL = "standing", "until"


def read(data: Mapping[str, str]) -> tuple[AdminOverride, float | None]:
    """The word, and when it ends, in seconds since 1970. A word that nobody knows stops everything: it harms least."""
    text = data.get(STANDING, AdminOverride.RUN.value).strip()
    words = {each.value: each for each in AdminOverride}
    return words.get(text, AdminOverride.PAUSE), unix_s(data[UNTIL].strip()) if data.get(UNTIL) else None


def config_map_data(override: AdminOverride, until: str = "") -> dict[str, str]:
    """The ConfigMap's data that says so."""
    return {STANDING: override.value, **({UNTIL: until} if until else {})}
