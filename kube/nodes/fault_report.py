"""Reads a launcher's report on its own node, an annotation of its pod: bounded JSON with a schema.

The reader takes the pod's node from the API server alone. The node named in the report is a claim, and a wrong one
voids the report.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from turnout.kube.errors import KubeError

MOST_BYTES = 16 << 10  # more than any verdict within the bounds below has, whatever JSON makes of its letters

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Name = Annotated[str, msgspec.Meta(max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=512)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Kind(StrEnum):
    """How a node came out of a check."""

    FINE = "fine"
    FAULTY = "faulty"  # its own computation, its network, or the links of its switchbox
    SLOW = "slow"
    LINK = "link"  # good with others, and not with one that is good with others, too: neither is to blame


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check's word on one node. at: when it was written, by the clock of that node. round: the one checked for.

    cause, why: what was measured against what. by: the member that judged, of run. members: how many measured together.
    node: where the writer believes to be, "" for nowhere. compute_s, collective_s: medians that the node itself
    measured last, None where it did not get so far.
    """

    kind: Kind
    at: Moment
    round: Count
    by: Name
    members: Count = 0
    run: Name = ""
    node: Name = ""
    cause: Name = ""
    why: Text = ""
    compute_s: Seconds | None = None
    collective_s: Seconds | None = None

    @property
    def at_s(self) -> float:
        """Return the report's time in seconds since 1970."""
        return self.at.timestamp()


class BadVerdict(KubeError):
    """A pod's annotation that is no report. It is told, and nothing else follows from it."""


_decoder = msgspec.json.Decoder(Verdict)


def read(text: str) -> Verdict:
    """Raises BadVerdict for what is too long, or not of the schema."""
    raw = text.encode("utf-8", "replace")
    if len(raw) > MOST_BYTES:
        raise BadVerdict(f"it has {len(raw)} bytes: {MOST_BYTES} at most")
    try:
        found = _decoder.decode(raw)
        found.at_s  # noqa: B018  (a year that no clock has is none)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise BadVerdict(str(error)[:200]) from error
    return found


def write(verdict: Verdict) -> str:
    """The annotation's text: below MOST_BYTES."""
    return msgspec.json.encode(verdict).decode()


def moment(wall_s: float) -> datetime:
    """Seconds since 1970 as a moment."""
    return datetime.fromtimestamp(wall_s, UTC)
