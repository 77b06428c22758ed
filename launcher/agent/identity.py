"""Determines an agent's identity: its name, its address, its ports, and the token that it shares with the job."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
import time
from pathlib import Path

from turnout.launcher.addresses import free_port
from turnout.launcher.errors import BadSettings, LauncherError
from turnout.launcher.model import Member
from turnout.launcher.settings import PlaceSettings, RendezvousSettings

_MOST_TOKEN_BYTES = 4_096
_FEWEST_TOKEN_BYTES = 16


class CannotListen(LauncherError):
    """The agent cannot listen on its port. Name the port and end."""


def token_of(rendezvous: RendezvousSettings, address: str) -> bytes:
    """Read the job's token, b"" for none. Raises BadSettings if it is missing and the address is not loopback, or if it
    is invalid.
    """
    if rendezvous.token_file:
        try:
            file = Path(rendezvous.token_file)
            if not stat.S_ISREG(file.stat().st_mode):
                raise BadSettings(f"the token {file} is no file")
            token = file.read_bytes()[: _MOST_TOKEN_BYTES + 1].strip()
        except OSError as error:
            raise BadSettings(f"the token {rendezvous.token_file} cannot be read: {error.strerror}") from error
        if not _FEWEST_TOKEN_BYTES <= len(token) <= _MOST_TOKEN_BYTES:
            raise BadSettings(
                f"the token {rendezvous.token_file} has {len(token)} bytes: "
                f"{_FEWEST_TOKEN_BYTES} to {_MOST_TOKEN_BYTES} are needed"
            )
        return token
    if not rendezvous.insecure and not ipaddress.ip_address(address).is_loopback:
        raise BadSettings(
            f"without a token agents meet on loopback only, and this one's address is {address}: "
            "give --token-file FILE, the same on all workers, or --insecure-no-token"
        )
    return b""


def listen_at(address: str) -> socket.socket:
    """Listen on any free port for other workers' daemons. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen at {address} for other daemons: {error.strerror}") from error
    return listener


def member_of(
    place: PlaceSettings,
    address: str,
    port: int,
    processes: int,
    path: tuple[str, ...],
    daemon_port: int = 0,
    store_port: int = 0,
) -> Member:
    """Describe this agent as a member. Its id is new, so messages of an earlier agent with this name do not bind it.

    store_port: the port at which training processes meet if this member has rank 0, 0 for any free one.
    """
    hostname = socket.gethostname()
    name = place.name or (f"{hostname}-{port}" if address == "127.0.0.1" else hostname)
    return Member(
        id=f"{name}/{secrets.token_hex(6)}",
        name=name,
        host=place.host or os.environ.get("NODE_NAME", "") or hostname,
        address=address,
        port=port,
        processes=processes,
        path=path,
        index=place.order,
        started_s=time.time(),
        master_port=store_port or free_port(address),
        daemon_port=daemon_port,
    )
