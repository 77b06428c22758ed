"""Keeps a member's link to its coordinator, searches for the next one, and defines the events of the agent's inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from turnout.launcher.coordinator_messages import (
    LastWorld,
    Message,
    Redirect,
    Roster,
    StoredStepReport,
    Successor,
    ToCoordinator,
)
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.find_coordinator import Address, GiveUp, Search
from turnout.launcher.rendezvous.transport.coordinator_link import CoordinatorClient, CoordinatorSearch
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.workers.worker_spec import Exited


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
    link: CoordinatorClient | None = None  # the connection that it was set for


MAX_KNOWN = 16


def put_unexpected(put: Callable[[object], None]) -> Callable[[asyncio.Task[None]], None]:
    """Return a callback for a finished task: if the task failed, put its exception into the inbox. The agent then ends
    with it.

    Without it, the agent would wait for ever for the result of the task. put: appends to the inbox.
    """

    def on_end(task: asyncio.Task[None]) -> None:
        """Pass on the error of a task that failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            put(error)

    return on_end


class SearchTask:
    """Runs the search for a coordinator, again after each loss, and keeps the state from which the next search starts.

    search: the first state. put: adds the result of each search to the agent's inbox.
    """

    def __init__(self, search: Search, finder: CoordinatorSearch, put: Callable[[object], None]) -> None:
        self._search, self._finder, self._put = search, finder, put
        self._task: asyncio.Task[None] | None = None
        self._without_target = False  # redirected without a target: the search goes on

    def begin(self, base: LastWorld) -> None:
        """Start the search for a coordinator, with the last world known. Its result goes to the inbox."""

        async def search() -> None:
            """Search for a coordinator and put the result into the inbox.

            A search without a target keeps its start time.
            """
            goes_on = self._search.tries_all_addresses or self._without_target
            since_s = self._search.since_s if goes_on else asyncio.get_running_loop().time()
            self._search = replace(self._search, since_s=since_s, base=base)
            self._put(CoordinatorFound(await self._finder.find(self._search)))

        self.cancel()
        self._task = asyncio.get_running_loop().create_task(search())
        self._task.add_done_callback(put_unexpected(self._put))

    def cancel(self) -> None:
        """Stop the search."""
        if self._task is not None:
            self._task.cancel()

    def set_coordinator(self, address: Address, successors: tuple[Successor, ...]) -> None:
        """Record the coordinator that the search found, and its successors.

        Successors that were known before stay at the end of the list, so that parts of a world can meet. The list has
        at most MAX_KNOWN successors.
        """
        ids = {each.id for each in successors}
        known = (*successors, *(each for each in self._search.successors if each.id not in ids))
        lap = replace(self._search.lap, silent=frozenset())
        self._search = replace(
            self._search, last=address, hint=None, handed_over=False, lap=lap, successors=known[:MAX_KNOWN]
        )
        self._without_target = False

    def set_silent(self) -> None:
        """Record that the last coordinator was silent: trying its address again would wait for the same failure."""
        if self._search.last is not None:
            self._search = replace(self._search, lap=replace(self._search.lap, silent=frozenset([self._search.last])))

    def set_target(self, to: Redirect, handed: bool) -> None:
        """Let the next search begin at the coordinator that `to` names (port 0: none is known).

        handed: the last coordinator chose this member as its successor.
        """
        last = self._search.last
        self._without_target = not to.port
        # The next coordinator may still name the last one: it is asked again, as if nobody answered at the old address.
        lap = replace(self._search.lap, silent=frozenset([last]) if to.port and last is not None else frozenset())
        hint = (to.address, to.port) if to.port else None
        self._search = replace(self._search, hint=hint, last=None, lap=lap, handed_over=handed)

    def set_periodic_search(self, tries_all_addresses: bool) -> None:
        """Turn periodic search on or off. It is on after leading a world below min with no better coordinator known."""
        self._search = replace(self._search, tries_all_addresses=tries_all_addresses)

    def set_formed(self, successors: tuple[Successor, ...]) -> None:
        """Record that this member's world has formed, and the successors of its coordinator."""
        self._search = replace(self._search, successors=successors, tries_all_addresses=False)

    def set_successors(self, successors: tuple[Successor, ...]) -> None:
        """Record that a world without this member has formed, and the successors of its coordinator if given."""
        self._search = replace(self._search, successors=successors or self._search.successors)


class CoordinatorSession:
    """Connects one agent to its coordinator. put: adds an event to the agent's inbox.

    `search`: looks for the next coordinator. `link`: the connection, None while there is none.
    """

    def __init__(
        self,
        seek: Search,
        finder: CoordinatorSearch,
        leadership: Leadership,
        put: Callable[[object], None],
        log_event: EventLog,
    ) -> None:
        self.search = SearchTask(seek, finder, put)
        self._leading, self._put, self._log_event = leadership, put, log_event
        self.link: CoordinatorClient | None = None
        self._last: CoordinatorClient | None = None
        self._early: list[MessageReceived] = []
        self._awaited_report: tuple[StoredStepReport, asyncio.Future[StoredStepReport]] | None = None

    def keep_early(self, received: MessageReceived) -> None:
        """Keep a message from a link whose discovery has not been handled yet."""
        self._early.append(received)

    def adopt_link(self, link: CoordinatorClient, address: Address) -> list[MessageReceived]:
        """Use the connection that the search found. Return the messages that arrived on it before this call.

        address: of the coordinator. Also log the coordinator, redirect members that come here to it, and send an
        unanswered StoredStepReport again. Early messages of other links are dropped.
        """
        assert link.welcome is not None
        self.link = link
        self._leading.set_redirect(Redirect(link.welcome.coordinator, *address))
        self.search.set_coordinator(address, link.welcome.successors)
        self._log_event(
            "coordinator_found", {"coordinator": link.welcome.coordinator, "at": f"{address[0]}:{address[1]}"}
        )
        if self._awaited_report is not None:
            link.send_message(self._awaited_report[0])
        early, self._early = self._early, []
        return [received for received in early if received.link is link]

    def handle_loss(self, received: MessageReceived) -> None:
        """Log the loss of the connection, and drop it. Does not start a search.

        If the coordinator was silent too long, the next search tries its address last. Otherwise a timer starts: if no
        coordinator is found within the silence limit, the agent stops training.
        """
        self._log_event("coordinator_lost", {"reason": received.reason.value})
        self._drop_link()
        if received.reason is Reason.MEMBER_SILENT:
            self.search.set_silent()
        else:
            self._start_silence_timer(received.link)

    def move_to(self, to: Redirect, handed: bool = False) -> None:
        """Leave the present coordinator, and let the next search begin at the one that `to` names (port 0: none is
        known).

        handed: the last coordinator chose this member as its successor.
        """
        assert self.link is not None
        self._log_event("coordinator_moved", {"coordinator": to.id, "at": f"{to.address}:{to.port}"})
        link = self.link
        link.leave()
        self._drop_link()
        self._start_silence_timer(link)
        self.search.set_target(to, handed)

    def has_lost(self, link: CoordinatorClient | None) -> bool:
        """Return True if this was the last link, and no other has been found."""
        return self.link is None and link is self._last

    def _start_silence_timer(self, link: CoordinatorClient) -> None:
        """Put TimerFired("coordinator") into the inbox once the coordinator's permitted silence has passed."""
        asyncio.get_running_loop().call_later(link.silence_s, self._put, TimerFired("coordinator", link))

    def _drop_link(self) -> None:
        """Forget the link as lost, but remember it for has_lost(), and stop sending workers to its coordinator."""
        self.link, self._last = None, self.link
        self._leading.set_redirect(None)

    def send(self, message: ToCoordinator) -> None:
        """Send a message to the coordinator. It is dropped if there is none."""
        if self.link is not None:
            self.link.send_message(message)

    async def agree_stored(self, report: StoredStepReport) -> StoredStepReport:
        """Report the stored step that this worker sees, and again on each new link. Return the step that all members
        read. Waits for the coordinator's answer without a time limit.
        """
        self._awaited_report = report, asyncio.get_running_loop().create_future()
        self.send(report)
        try:
            return await self._awaited_report[1]
        finally:
            self._awaited_report = None

    def handle(self, message: Message | None) -> Message | None:
        """Handle a message from the coordinator; return it if it is for the agent.

        None if it is not for the agent: a Roster is logged, and a StoredStepReport of the awaited round ends the wait
        in `agree_stored`.
        """
        if isinstance(message, Roster):
            members = [f"{each.name} {each.address}" for each in message.members]
            self._log_event("roster", {"round": message.round, "members": members})
            return None
        if not isinstance(message, StoredStepReport):
            return message
        if (
            self._awaited_report is not None
            and self._awaited_report[0].round == message.round
            and not self._awaited_report[1].done()
        ):
            self._awaited_report[1].set_result(message)
        return None

    def close(self) -> None:
        """Stop the search, and leave the coordinator."""
        self.search.cancel()
        if self.link is not None:
            self.link.leave()
