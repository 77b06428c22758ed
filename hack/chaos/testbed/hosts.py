"""Hosts of one bridge, each a network namespace, so that one can fall silent: its packets are lost, nobody is told."""

from __future__ import annotations

import os
import subprocess
from itertools import count

_NOBODY = "02:00:00:00:00:fe"  # an Ethernet address that no host has
_numbers = count()


class Hosts:
    """Hosts as network namespaces, numbered from 1, with the addresses 10.77.0.1 and on. Needs root and `ip`.

    size: number of hosts, at most 254.
    """

    def __init__(self, size: int) -> None:
        self.prefix, self.names = f"crew-{os.getpid()}-{next(_numbers)}", list[str]()
        self.bridge = self._add("bridge")
        _ip("-n", self.bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.bridge, "link", "set", "br0", "up")
        for at in range(1, size + 1):
            name = self._add(str(at))
            _ip("-n", self.bridge, "link", "add", f"v{at}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.reconnect(at)
            _ip("-n", self.bridge, "link", "set", f"v{at}", "up")
            _ip("-n", name, "addr", "add", f"{self.address(at)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")

    def _add(self, name: str) -> str:
        _ip("netns", "add", f"{self.prefix}-{name}")
        self.names.append(f"{self.prefix}-{name}")
        return self.names[-1]

    def address(self, at: int) -> str:
        """Return the IP address of host `at`."""
        return f"10.77.0.{at}"

    def inside(self, at: int) -> tuple[str, ...]:
        """Return the words to put before a command that runs in the network namespace of host `at`."""
        return ("ip", "netns", "exec", f"{self.prefix}-{at}")

    def cut(self, at: int) -> None:
        """Drop all packets to and from host `at` from now on. Its link stays up."""
        _ip("-n", self.bridge, "link", "set", f"v{at}", "nomaster")

    def reconnect(self, at: int) -> None:
        """Let the packets of host `at` through again, after `cut`."""
        _ip("-n", self.bridge, "link", "set", f"v{at}", "master", "br0")

    def partition(self, one: int, other: int) -> None:
        """Drop the packets between hosts `one` and `other` in both directions; both reach all others."""
        self.drop_packets(one, other)
        self.drop_packets(other, one)

    def drop_packets(self, at: int, to: int) -> None:
        """Drop the packets from host `at` to host `to` from now on. Packets in the other direction get through."""
        self._neighbour(at, "replace", to, "lladdr", _NOBODY, "nud", "permanent")

    def undo_drop(self, at: int, to: int) -> None:
        """Let the packets from host `at` to host `to` through again, after `drop_packets`."""
        self._neighbour(at, "del", to)

    def _neighbour(self, at: int, verb: str, to: int, *more: str) -> None:
        _ip("-n", f"{self.prefix}-{at}", "neigh", verb, self.address(to), *more, "dev", "eth0")

    def end(self) -> None:
        """Remove all network namespaces."""
        for name in self.names:
            _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True, text=True, timeout=20)
