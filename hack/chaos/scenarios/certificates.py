"""Certificates that rotate, expire or break, kind 22, under the extender's own listeners and a caller's TLS.

The files change as a Secret's mount changes them: whole, or half of them first. After each change the listeners look
once, and a new caller connects.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.authority import DAY, NOW, Authority, Pair, caller
from turnout.kube.client.clock import RealClock
from turnout.kube.objects import Pod
from turnout.scheduler_ext.model import Answer, Victims
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import Listen, Listeners, TlsFiles
from turnout.scheduler_ext.wire.pod_messages import Review

CHANGES = 8
_PATIENCE_S = 5.0
_EXPIRY = "turnout_tls_certificate_expiry_timestamp_seconds"

SERVED = "a caller is served after every change, without a restart"
TAKEN = "a good pair is shown to the next caller"
KEPT = "a pair that cannot be used replaces none that can"
EXPIRY = "the metric tells when the certificate in use expires"


class _AnyNode:
    """An extender that keeps every node."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        return Answer(list(names))

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        return []

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        return victims

    def refusal_of_pod(self, pod: Pod) -> Answer:
        return Answer()

    def refusal_of_gang(self, namespace: str, name: str) -> Answer:
        return Answer()

    def gates(self, review: Review) -> bool:
        """Gate no pod."""
        return False

    def unready(self) -> str | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}


class _ByHand(RealClock):
    """A clock whose sleeper goes on when told. wall() is the time at which the certificates were made."""

    def __init__(self) -> None:
        self.asleep, self._go_on = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.asleep.set()
        await self._go_on.wait()
        self._go_on.clear()

    def wall(self) -> float:
        return NOW.timestamp()

    async def tick(self) -> None:
        """Have the sleeper do its work once."""
        await self.asleep.wait()
        self.asleep.clear()
        self._go_on.set()
        await self.asleep.wait()


@dataclass(slots=True)
class _Files:
    """The files of the server, and which pair it has to show."""

    folder: Path
    authority: Authority
    dice: random.Random
    good: Pair = field(init=False)
    name: str = "first"
    number: int = 0

    def __post_init__(self) -> None:
        self.rotate()

    def made(self, days: int) -> Pair:
        self.number += 1
        return self.authority.sign(f"server-{self.number}", ends=NOW + days * DAY)

    def put(self, cert: bytes, key: bytes) -> None:
        (self.folder / "tls.crt").write_bytes(cert)
        (self.folder / "tls.key").write_bytes(key)

    def rotate(self) -> None:
        self.good = self.made(self.dice.randint(1, 60))
        self.name = f"server-{self.number}"
        self.put(self.good.cert, self.good.key)

    def half(self) -> None:
        """The new certificate is there before its key."""
        self.put(self.made(30).cert, self.good.key)

    def garbage(self) -> None:
        self.put(self.good.cert[: self.dice.randrange(len(self.good.cert))], self.good.key)

    def empty(self) -> None:
        self.put(b"", b"")

    def expired(self) -> None:
        pair = self.made(-self.dice.randint(1, 9))
        self.put(pair.cert, pair.key)

    def gone(self) -> None:
        (self.folder / "tls.crt").unlink(missing_ok=True)


async def play(seed: int) -> Strike:
    """Change the files again and again under one server."""
    dice = random.Random(f"certificate/{seed}")
    unserved, not_taken, not_kept, expiry = list[str](), list[str](), list[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        files = _Files(Path(name), Authority(), dice)
        changes: dict[str, Callable[[], None]] = {
            "rotated": files.rotate,
            "half rotated": files.half,
            "cut short": files.garbage,
            "empty": files.empty,
            "expired": files.expired,
            "gone": files.gone,
        }
        order = ["rotated", *dice.sample(sorted(set(changes) - {"rotated"}), 5), "rotated"]
        order += dice.choices(sorted(changes), k=CHANGES - len(order))
        metrics, clock, trust = Metrics(), _ByHand(), caller(files.authority, Path(name))
        listen = Listen(port=0, health_port=0, tls=TlsFiles(Path(name, "tls.crt"), Path(name, "tls.key")))
        async with Listeners(_AnyNode(), metrics, listen) as front:
            following = asyncio.create_task(front.follow(clock))
            try:
                for what in order:
                    changes[what]()
                    await clock.tick()
                    shown = await _shown(front.port, trust)
                    unserved += [f"{what}: nobody answers"] * (not shown)
                    wrong = not_taken if what == "rotated" else not_kept
                    wrong += [f"{what}: {shown} is shown, not {files.name}"] * (shown not in ("", files.name))
                    told_s = metrics.registry.get_sample_value(_EXPIRY)
                    expiry += [f"{what}: {told_s} for {files.good.ends_s}"] * (told_s != files.good.ends_s)
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
    checks = (Check(SERVED, tuple(unserved)), Check(TAKEN, tuple(not_taken)))
    more = (Check(KEPT, tuple(not_kept)), Check(EXPIRY, tuple(expiry)))
    return Strike(Kind.CERTIFICATE, seed, len(order), (*checks, *more), ", ".join(order))


async def _shown(port: int, trust: ssl.SSLContext) -> str:
    """Connect, ask once, and return the name on the server's certificate; "" if it does not answer."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="127.0.0.1")
            writer.write(
                b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
            )
            answered = await reader.readline()
            subject = writer.get_extra_info("peercert")["subject"]
            writer.close()
            return str(dict(item[0] for item in subject)["commonName"]) if answered.startswith(b"HTTP/1.1 ") else ""
    except (OSError, TimeoutError):  # ssl.SSLError is an OSError
        return ""
