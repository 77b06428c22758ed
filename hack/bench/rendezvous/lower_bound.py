"""The floor: connections and one small message each way, without decisions."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from hack.bench.rendezvous.agents import Gate

HERE = "127.0.0.1"
BACKLOG = 4096
_SAID = b"x" * 64


class LowerBound:
    """Every agent connects and sends 64 bytes. Once the last has done so, the server sends 64 bytes to each."""

    def warm(self) -> None:
        """Do nothing: there is nothing to import."""

    def serve(self, agents: int, report: Callable[[float], None]) -> None:
        """Accept `agents` connections and a message of each, then answer all, and wait until killed.

        report: called with the port.
        """
        with socket.create_server((HERE, 0), backlog=BACKLOG) as server, selectors.DefaultSelector() as selector:
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ)
            report(server.getsockname()[1])
            spoken: list[socket.socket] = []
            while len(spoken) < agents:
                for key, _ in selector.select():
                    if key.fileobj is server:
                        _accept(server, selector)
                    elif isinstance(key.fileobj, socket.socket):
                        selector.unregister(key.fileobj)
                        key.fileobj.recv(len(_SAID))
                        spoken.append(key.fileobj)
            for peer in spoken:
                peer.send(_SAID)
            time.sleep(3600)

    def meet(self, mine: Sequence[int], agents: int, port: int, gate: Gate) -> Iterator[list[float]]:
        """Connect for each agent and send its message; then yield when each answer arrived.

        mine: numbers of this process's agents. gate: returns at the start signal.
        """
        gate()
        peers = []
        for _ in mine:
            peer = socket.create_connection((HERE, port))
            peer.send(_SAID)
            peers.append(peer)
        yield [_heard_s(peer) for peer in peers]


def _accept(server: socket.socket, selector: selectors.BaseSelector) -> None:
    """Accept all pending connections and register them.

    server: a listening socket that does not block. selector: gets the connections.
    """
    while True:
        try:
            peer, _ = server.accept()
        except BlockingIOError:
            return
        selector.register(peer, selectors.EVENT_READ)


def _heard_s(peer: socket.socket) -> float:
    """Return when the answer arrived, monotonic seconds. Raises ConnectionError for another answer."""
    if peer.recv(len(_SAID)) != _SAID:
        raise ConnectionError("no answer")
    return time.monotonic()


class AddressLookup:
    """One look-up of an address by the C library for each agent, as each client of a TCPStore makes."""

    def warm(self) -> None:
        """Do nothing: there is nothing to import."""

    def serve(self, agents: int, report: Callable[[float], None]) -> None:
        """Report port 0, and wait until killed: there is no server."""
        report(0)
        time.sleep(3600)

    def meet(self, mine: Sequence[int], agents: int, port: int, gate: Gate) -> Iterator[list[float]]:
        """Look an address up for each agent, and yield the time afterwards. An unknown name is an answer too.

        mine: numbers of this process's agents. gate: returns at the start signal. agents, port: not used.
        """
        gate()
        for agent in mine:
            socket.getnameinfo((f"127.0.1.{agent + 1}", 9), 0)
        yield [time.monotonic() for _ in mine]
