"""What can happen to an agent: the nouns in its inbox, beside the end of its own coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.model import Reason
from turnout.launcher.process.orders import Exited
from turnout.launcher.rendezvous.seek import Address, GiveUp
from turnout.launcher.shell.meeting.link import Link
from turnout.launcher.wire import Message


@dataclass(frozen=True, slots=True)
class Came:
    """A message on a link; None: the link is lost, for this reason."""

    link: Link
    message: Message | None
    reason: Reason = Reason.MEMBER_LOST


@dataclass(frozen=True, slots=True)
class Found:
    """The search has ended."""

    found: tuple[Link, Address] | GiveUp


@dataclass(frozen=True, slots=True)
class Ended:
    """Processes of a round have ended. fault: they could not even be started.

    unfetched: since the memory that they were to go on from could not be had: it is nobody's fault.
    """

    round: int
    exited: tuple[Exited, ...] = ()
    fault: str = ""
    unfetched: bool = False


@dataclass(frozen=True, slots=True)
class Signalled:
    """Asked to go."""

    signal: int


@dataclass(frozen=True, slots=True)
class Late:
    """Some time is up: the time to leave, or to be without a coordinator."""

    what: str
    link: Link | None = None
