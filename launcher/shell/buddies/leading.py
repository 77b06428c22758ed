"""Which step is copied next: the first member's keeper says it to all, so that all copies are of one step.

It names the newest step that it has itself, once all have answered for the one before. So the slowest sets the pace,
training waits for nobody, and of any two steps named all memories hold the older one until the newer one is whole.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from turnout.launcher.checkpoint.peers import Copied, Copy, Follow
from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.keeping import Circle
from turnout.launcher.shell.buddies.copying import Copying, How
from turnout.launcher.shell.buddies.home import Here
from turnout.launcher.shell.buddies.shelf import Shelf
from turnout.launcher.shell.buddies.talk import Talk, Unheard, call

COPY_S = 3_600.0  # for the slowest to have copied
RETRY_S, MOST_RETRY_S, TOLD = 0.05, 1.0, 30  # between two calls, and after how many it is told


class Leading:
    """Of the first member's keeper, in one round."""

    def __init__(self, here: Here, copying: Copying, shelf: Shelf) -> None:
        self._here, self._copying, self._shelf = here, copying, shelf
        self._followers: dict[str, Talk] = {}
        self._came = asyncio.Condition()

    async def follow(self, talk: Talk) -> None:
        """One more to say it to. Who comes again has a new connection."""
        async with self._came:
            before, self._followers[talk.peer] = self._followers.get(talk.peer), talk
            if before is not None:
                before.close()
            self._came.notify_all()

    def has(self, talk: Talk) -> bool:
        """Does this connection belong to one who follows?"""
        return self._followers.get(talk.peer) is talk

    async def lead(self, circle: Circle) -> None:
        """Until cancelled."""
        here, step = self._here, -1
        others = circle.size - 1
        while True:
            async with self._came:
                await self._came.wait_for(lambda: len(self._followers) >= others)
            async with here.sealed:
                await here.sealed.wait_for(partial(here.has_sealed, 0, step + 1))
            step = here.newest(0)
            asked = dict(self._followers)
            hows = await asyncio.gather(
                obeyed(here, self._copying, self._shelf, step, here.whole),
                *(self._asked(name, talk, step, here.whole) for name, talk in asked.items()),
            )
            if "failed" not in hows:
                here.whole = step

    async def _asked(self, name: str, talk: Talk, step: int, whole: int) -> How:
        try:
            answer = await talk.ask(Copy(step, whole), COPY_S)
            if isinstance(answer, Copied) and answer.step == step:
                return answer.how
            raise BadFrame(f"{type(answer).__name__} after Copy")
        except LauncherError:
            if self._followers.get(name) is talk:
                del self._followers[name]
            talk.close()
            return "failed"

    def close(self) -> None:
        """The round is over."""
        for talk in self._followers.values():
            talk.close()


async def follow(here: Here, copying: Copying, shelf: Shelf, circle: Circle) -> None:
    """Copy what the first member's keeper names, until cancelled."""
    tries = 0
    while True:
        talk: Talk | None = None
        try:
            talk = await call(circle.first, here.me, here.round)
            await talk.say(Follow())
            while True:
                message = await talk.hear(None)
                if not isinstance(message, Copy):
                    raise Unheard(f"it says {type(message).__name__}")
                tries = 0
                how = await obeyed(here, copying, shelf, message.step, message.whole)
                await talk.say(Copied(message.step, how))
        except LauncherError as error:
            tries += 1
            if tries == TOLD:
                here.say("replicas_unled", {"first": circle.first.name, "detail": str(error)})
            await asyncio.sleep(min(RETRY_S * tries, MOST_RETRY_S))
        finally:
            if talk is not None:
                with suppress(OSError):
                    talk.close()


async def obeyed(here: Here, copying: Copying, shelf: Shelf, step: int, whole: int) -> How:
    """Do what was named. What no whole step needs any more is given back first."""
    here.whole = max(here.whole, whole)
    if here.whole in here.copied:
        shelf.retire(here.whole, here.round)
    here.copied = {each for each in here.copied if each > here.whole} | {step}
    return await copying.copy(step, here.whole)
