"""A member's contact with whoever coordinates: the link, the search for the next one, and what is known of where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.seek import Address, Seek
from turnout.launcher.shell.happened import Came, Found, Late
from turnout.launcher.shell.meeting.finding import Finder
from turnout.launcher.shell.meeting.leading import Leading
from turnout.launcher.shell.meeting.link import Link
from turnout.launcher.shell.say import Say
from turnout.launcher.wire import Base, Message, Redirect, Roster, Stored, Successor, ToCoordinator

MOST_KNOWN = 16


class Contact:
    """Of one agent. put: into its inbox."""

    def __init__(self, seek: Seek, finder: Finder, leading: Leading, put: Callable[[object], None], say: Say) -> None:
        self._seek, self._finder, self._leading, self._put, self._say = seek, finder, leading, put, say
        self.link: Link | None = None
        self._last: Link | None = None
        self._early: list[Came] = []
        self._searching: asyncio.Task[None] | None = None
        self._nowhere = False  # sent away, to nobody: the search goes on
        self._naming: tuple[Stored, asyncio.Future[Stored]] | None = None

    def search(self, base: Base) -> None:
        """Look for a coordinator, with what we know of the last world. The inbox gets what was found."""

        async def search() -> None:
            since_s = self._seek.since_s if self._seek.roams or self._nowhere else asyncio.get_running_loop().time()
            self._seek = seek = replace(self._seek, since_s=since_s, base=base)
            self._put(Found(await self._finder.find(seek)))

        if self._searching is not None:
            self._searching.cancel()
        self._searching = asyncio.get_running_loop().create_task(search())

    def early(self, came: Came) -> None:
        """Something was said on a link of which we have not heard yet that it was found."""
        self._early.append(came)

    def made(self, link: Link, address: Address) -> list[Came]:
        """The search has found it. Gives what was said on it meanwhile."""
        assert link.welcome is not None
        self.link = link
        self._leading.elsewhere(Redirect(link.welcome.coordinator, *address))
        ids = {each.id for each in link.welcome.successors}  # and whom we knew before: so that parts of a world meet
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

    def lost(self, came: Came) -> None:
        """The link is gone: after its silence we may not train any more, unless there is another one by then."""
        self._say("coordinator_lost", {"reason": came.reason.value})
        self._gone()
        if came.reason is Reason.MEMBER_SILENT:
            if self._seek.last is not None:  # to knock there would last until that fails, too
                self._seek = replace(self._seek, silent=frozenset([self._seek.last]))
        else:
            self._miss(came.link)

    def moved(self, to: Redirect, handed: bool = False) -> None:
        """Somebody else decides now. handed: it is we, by the will of the last one."""
        assert self.link is not None
        self._say("coordinator_moved", {"coordinator": to.id, "at": f"{to.address}:{to.port}"})
        link = self.link
        link.leave()
        self._gone()
        self._miss(link)
        self._nowhere = not to.port
        self._seek = replace(self._seek, hint=(to.address, to.port) if to.port else None, last=None, handed=handed)

    def roam(self, roams: bool) -> None:
        """We have led, with too few, and know nobody who does better; or we know somebody."""
        self._seek = replace(self._seek, roams=roams)

    def formed(self, successors: tuple[Successor, ...]) -> None:
        """A world, ours, and who comes after its coordinator."""
        self._seek = replace(self._seek, successors=successors, roams=False)

    def succeed(self, successors: tuple[Successor, ...]) -> None:
        """A world of others, and who comes after its coordinator, if that is told."""
        self._seek = replace(self._seek, successors=successors or self._seek.successors)

    def misses(self, link: Link | None) -> bool:
        """Was this the last coordinator that we had, and is there still no other?"""
        return self.link is None and link is self._last

    def _miss(self, link: Link) -> None:
        asyncio.get_running_loop().call_later(link.silence_s, self._put, Late("coordinator", link))

    def _gone(self) -> None:
        self.link, self._last = None, self.link
        self._leading.elsewhere(None)

    def send(self, message: ToCoordinator) -> None:
        """Say this; nothing while there is nobody to hear it."""
        if self.link is not None:
            self.link.say(message)

    async def named(self, seen: Stored) -> Stored:
        """Say what we see in storage, again on each new link, until we hear what all members of the round read."""
        self._naming = seen, asyncio.get_running_loop().create_future()
        self.send(seen)
        try:
            return await self._naming[1]
        finally:
            self._naming = None

    def heard(self, message: Message | None) -> Message | None:
        """What was said on our link. Gives what is not for us: all but who is there, and what all of them read."""
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
        """Search no more, and leave."""
        if self._searching is not None:
            self._searching.cancel()
        if self.link is not None:
            self.link.leave()
