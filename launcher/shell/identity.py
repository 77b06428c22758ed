"""Who this agent is: its name, its address, the port where it listens, and the token that it shares with the job."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

from turnout.launcher.errors import BadSettings, LauncherError
from turnout.launcher.model import Member
from turnout.launcher.settings import Meeting, Place

RESOLVE_S = 5.0
_MOST_TOKEN_BYTES = 4_096
_FEWEST_TOKEN_BYTES = 16


class NoDoor(LauncherError):
    """The port where this agent should listen cannot be had. Say which, and end."""


def token_of(meeting: Meeting, address: str) -> bytes:
    """The job's token, b"" for none. Raises BadSettings where none is given and others could knock."""
    if meeting.token_file:
        try:
            file = Path(meeting.token_file)
            if not stat.S_ISREG(file.stat().st_mode):
                raise BadSettings(f"the token {file} is no file")
            token = file.read_bytes()[: _MOST_TOKEN_BYTES + 1].strip()
        except OSError as error:
            raise BadSettings(f"the token {meeting.token_file} cannot be read: {error.strerror}") from error
        if not _FEWEST_TOKEN_BYTES <= len(token) <= _MOST_TOKEN_BYTES:
            raise BadSettings(
                f"the token {meeting.token_file} has {len(token)} bytes: "
                f"{_FEWEST_TOKEN_BYTES} to {_MOST_TOKEN_BYTES} are needed"
            )
        return token
    if not meeting.insecure and not ipaddress.ip_address(address).is_loopback:
        raise BadSettings(
            f"without a token agents meet on loopback only, and this one's address is {address}: "
            "give --token-file FILE, the same on all workers, or --insecure-no-token"
        )
    return b""


async def resolved(host: str, within_s: float = RESOLVE_S) -> str | None:
    """The IP of a host, at once where it is one; None when the name server does not tell in time.

    In a thread of its own that nobody waits for: a name server that is silent must not hold up an exit.
    """
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if host == "localhost":
        return "127.0.0.1"
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str | None] = loop.create_future()

    def tell(answer: str) -> None:
        if not found.done():
            found.set_result(answer or None)

    def look() -> None:
        try:
            answer = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            answer = ""
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=look, name="resolve", daemon=True).start()
    try:
        return await asyncio.wait_for(found, within_s)
    except TimeoutError:
        return None


def is_own(address: str) -> bool:
    """Is this IP one of this machine? Only such a one can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(towards: str | None) -> str:
    """The address of ours from which that one is reached; loopback when nobody is to be reached. Sends nothing."""
    if towards is None or ipaddress.ip_address(towards).is_loopback:
        return "127.0.0.1"
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((towards, 9))
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


def free_port(address: str) -> int:
    """A port that nobody listens on here now. A training process takes it a moment later."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def door_at(address: str) -> socket.socket:
    """Where the keepers of other workers come in: at any port. Raises NoDoor."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.bind((address, 0))
        door.listen(socket.SOMAXCONN)
    except OSError as error:
        door.close()
        raise NoDoor(f"cannot listen at {address} for other keepers: {error.strerror}") from error
    return door


def member_of(
    place: Place, address: str, port: int, processes: int, path: tuple[str, ...], keeper: int = 0, store_port: int = 0
) -> Member:
    """This agent as others know it. Its id is new: what an earlier one of the same name said does not bind it.

    store_port: where its processes meet if it has rank 0, 0 for any port that is free.
    """
    hostname = socket.gethostname()
    name = place.name or (f"{hostname}-{port}" if address == "127.0.0.1" else hostname)
    return Member(
        id=f"{name}/{secrets.token_hex(6)}", name=name, host=place.host or os.environ.get("NODE_NAME", "") or hostname,
        address=address, port=port, processes=processes, path=path, order=place.order, born_s=time.time(),
        master_port=store_port or free_port(address), keeper=keeper,
    )  # fmt: skip
