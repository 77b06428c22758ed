"""Defines the events in an agent's inbox, besides the end of its own coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.find_coordinator import Address, GiveUp
from turnout.launcher.rendezvous.messages import Message
from turnout.launcher.rendezvous.transport.coordinator_client import CoordinatorClient
from turnout.launcher.workers.spawn_spec import Exited


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message on a link, or None if the link is lost for this reason."""

    link: CoordinatorClient
    message: Message | None
    reason: Reason = Reason.MEMBER_LOST


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """The search for a coordinator has ended."""

    found: tuple[CoordinatorClient, Address] | GiveUp


@dataclass(frozen=True, slots=True)
class WorkersExited:
    """The processes of a round have ended."""

    round: int
    exited: tuple[Exited, ...] = ()
    fault: str = ""  # why the processes could not be started
    unfetched: bool = False  # the memory to restore could not be fetched; not a fault of the processes


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal asked this agent to act."""

    signal: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """An event in the agent's inbox: a timer that the agent set has run out."""

    what: str  # "leave", "coordinator" or "steps"
    link: CoordinatorClient | None = None
