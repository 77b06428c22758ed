"""What an admin has said of all jobs at once, in a ConfigMap: `turnout pause --all` writes it."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.autoscaler.model import Standing
from turnout.kube.times import since_1970

STANDING, UNTIL = "standing", "until"


def read(data: Mapping[str, str]) -> tuple[Standing, float | None]:
    """The word, and when it ends, in seconds since 1970. A word that nobody knows stops everything: it harms least."""
    text = data.get(STANDING, Standing.RUN.value).strip()
    words = {each.value: each for each in Standing}
    return words.get(text, Standing.PAUSE), since_1970(data[UNTIL].strip()) if data.get(UNTIL) else None


def written(standing: Standing, until: str = "") -> dict[str, str]:
    """The ConfigMap's data that says so."""
    return {STANDING: standing.value, **({UNTIL: until} if until else {})}
