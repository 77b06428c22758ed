"""Keeps a member's link to its coordinator, searches for the next one, and remembers where to look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from turnout.launcher.agent.events import CoordinatorFound, MessageReceived, TimerFired
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.find_coordinator import Address, Seek
from turnout.launcher.rendezvous.messages import LastWorld, Message, Redirect, Roster, Stored, Successor, ToCoordinator
from turnout.launcher.rendezvous.transport.coordinator_client import CoordinatorClient
from turnout.launcher.rendezvous.transport.coordinator_search import CoordinatorSearch
from turnout.launcher.rendezvous.transport.leadership import Leadership

MOST_KNOWN = 16


class CoordinatorSession:
    """Connects one agent to its coordinator. put: adds an event to the agent's inbox."""

    def __init__(
        self, seek: Seek, finder: CoordinatorSearch, leading: Leadership, put: Callable[[object], None], say: EventLog
    ) -> None:
        self._seek, self._finder, self._leading, self._put, self._say = seek, finder, leading, put, say
        self.link: CoordinatorClient | None = None
        self._last: CoordinatorClient | None = None
        self._early: list[MessageReceived] = []
        self._searching: asyncio.Task[None] | None = None
        self._nowhere = False  # redirected without a target: the search goes on
        self._naming: tuple[Stored, asyncio.Future[Stored]] | None = None

    def search(self, base: LastWorld) -> None:
        """Start the search for a coordinator, with the last world known. Its result goes to the inbox."""

        async def search() -> None:
            since_s = self._seek.since_s if self._seek.roams or self._nowhere else asyncio.get_running_loop().time()
            self._seek = seek = replace(self._seek, since_s=since_s, base=base)
            self._put(CoordinatorFound(await self._finder.find(seek)))

        if self._searching is not None:
            self._searching.cancel()
        self._searching = asyncio.get_running_loop().create_task(search())

    def early(self, came: MessageReceived) -> None:
        """Keep a message from a link whose discovery has not been handled yet."""
        self._early.append(came)

    def made(self, link: CoordinatorClient, address: Address) -> list[MessageReceived]:
        """Adopt the link that the search found; return the messages received on it meanwhile."""
        assert link.welcome is not None
        self.link = link
        self._leading.elsewhere(Redirect(link.welcome.coordinator, *address))
        # Keep known successors too, so that parts of a world can meet.
        ids = {each.id for each in link.welcome.successors}
        known = (*link.welcome.successors, *(each for each in self._seek.successors if each.id not in ids))
        self._seek = replace(
            self._seek, last=address, hint=None, handed=False, silent=frozenset(), successors=known[:MOST_KNOWN]
        )
        self._nowhere = False
        self._say("coordinator_found", {"coordinator": link.welcome.coordinator, "at": f"{address[0]}:{address[1]}"})
        if self._naming is not None:
            link.say(self._naming[0])
        early, self._early = self._early, []
        return [came for came in early if came.link is link]

    def lost(self, came: MessageReceived) -> None:
        """Handle the loss of the link. Training must stop after its silence limit, unless another coordinator is found
        by then.
        """
        self._say("coordinator_lost", {"reason": came.reason.value})
        self._gone()
        if came.reason is Reason.MEMBER_SILENT:
            if self._seek.last is not None:  # trying that address again would wait for the same failure
                self._seek = replace(self._seek, silent=frozenset([self._seek.last]))
        else:
            self._miss(came.link)

    def moved(self, to: Redirect, handed: bool = False) -> None:
        """Go to another coordinator. handed: the last coordinator chose this member."""
        assert self.link is not None
        self._say("coordinator_moved", {"coordinator": to.id, "at": f"{to.address}:{to.port}"})
        link = self.link
        link.leave()
        self._gone()
        self._miss(link)
        self._nowhere = not to.port
        self._seek = replace(self._seek, hint=(to.address, to.port) if to.port else None, last=None, handed=handed)

    def roam(self, roams: bool) -> None:
        """Turn periodic search on or off. It is on after leading a world below min with no better coordinator known."""
        self._seek = replace(self._seek, roams=roams)

    def formed(self, successors: tuple[Successor, ...]) -> None:
        """Record that this member's world has formed, and the successors of its coordinator."""
        self._seek = replace(self._seek, successors=successors, roams=False)

    def succeed(self, successors: tuple[Successor, ...]) -> None:
        """Record that a world without this member has formed, and the successors of its coordinator if given."""
        self._seek = replace(self._seek, successors=successors or self._seek.successors)

    def misses(self, link: CoordinatorClient | None) -> bool:
        """True if this was the last link, and no other has been found."""
        return self.link is None and link is self._last

    def _miss(self, link: CoordinatorClient) -> None:
        asyncio.get_running_loop().call_later(link.silence_s, self._put, TimerFired("coordinator", link))

    def _gone(self) -> None:
        self.link, self._last = None, self.link
        self._leading.elsewhere(None)

    def send(self, message: ToCoordinator) -> None:
        """Send a message to the coordinator. It is dropped if there is none."""
        if self.link is not None:
            self.link.say(message)

    async def named(self, seen: Stored) -> Stored:
        """Report the stored step that this worker sees, and again on each new link. Return the step that all members
        read.
        """
        self._naming = seen, asyncio.get_running_loop().create_future()
        self.send(seen)
        try:
            return await self._naming[1]
        finally:
            self._naming = None

    def heard(self, message: Message | None) -> Message | None:
        """Handle a message from the coordinator; return it if it is for the agent.

        A Roster is logged, and a Stored answer ends the wait in `named`.
        """
        if isinstance(message, Roster):
            there = [f"{each.name} {each.address}" for each in message.members]
            self._say("roster", {"round": message.round, "members": there})
            return None
        if not isinstance(message, Stored):
            return message
        if self._naming is not None and self._naming[0].round == message.round and not self._naming[1].done():
            self._naming[1].set_result(message)
        return None

    def close(self) -> None:
        """Stop the search, and leave the coordinator."""
        if self._searching is not None:
            self._searching.cancel()
        if self.link is not None:
            self.link.leave()
