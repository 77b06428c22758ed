"""A caller that behaves as Go's client: one connection, no delay, one request at a time; its children end with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from turnout.launcher.linux import die_with

START_S = 180.0
_CHUNK = 1 << 18


class Caller:
    """One kept connection to a server on loopback."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)  # the embedded API server has a token in its path
        self._prefix = parts.path.rstrip("/")
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        # Without it a request in two segments waits 40 ms for an acknowledgement. Go sets it too.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, method: str, path: str, body: bytes) -> tuple[bytes, float]:
        """Send a request and wait for its answer. Return (body of the answer, seconds that it took).

        path: below the path of the server's URL. body: JSON, b"" for none. Raises RuntimeError unless the status is
        2xx, or if the server closes the connection.
        """
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        start_s = time.perf_counter()
        self._socket.sendall(head + body)
        answer = bytearray()
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more()
        top = answer[:end].decode().lower()
        need = end + 4 + int(top.partition("content-length: ")[2].partition("\r\n")[0])
        while len(answer) < need:
            answer += self._more()
        took_s = time.perf_counter() - start_s
        if not top.startswith("http/1.1 2"):
            raise RuntimeError(f"{method} {path}: {top.partition(chr(13))[0]}: {bytes(answer[end + 4 :])[:200]!r}")
        return bytes(answer[end + 4 :]), took_s

    def json(self, method: str, path: str, obj: Any = None) -> Any:
        """Send one request with a JSON body, and return the decoded JSON answer. obj: None for no body.

        Raises RuntimeError as `call` does.
        """
        answer, _ = self.call(method, path, b"" if obj is None else json.dumps(obj).encode())
        return json.loads(answer)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _more(self) -> bytes:
        """Return further bytes of the answer. Raises RuntimeError if the server closed the connection."""
        block = self._socket.recv(_CHUNK)
        if not block:
            raise RuntimeError("the server ended the connection")
        return block


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of children.py while the block runs, then send SIGTERM and wait for its end.

    arguments: those of children.py. If the block raises, the process is killed. Raises RuntimeError if the process ends
    with an error, and subprocess.TimeoutExpired if it ends no sooner than 30 s after SIGTERM.
    """
    command = [sys.executable, "-m", "hack.bench.extender.children", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        yield process
        process.terminate()
        if process.wait(30):
            raise RuntimeError(f"{arguments[0]} ended with {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for_file(file: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for a file that a child writes, and return its text. Raises RuntimeError if the child ends, or after
    START_S.
    """
    return wait_for(lambda: file.read_text() if file.exists() else "", process)


def wait_for(look: Callable[[], str], process: subprocess.Popen[bytes]) -> str:
    """Call `look` until it returns a text, and return the text. Raises RuntimeError if the process ends or START_S
    is over.
    """
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        if found := look():
            return found
        time.sleep(0.05)
    raise RuntimeError("a child did not start")


def url_of(port: int) -> str:
    """Return the URL of a server on a port of loopback."""
    return f"http://127.0.0.1:{port}"


def read_readiness(port: int) -> str:
    """Return the answer of /readyz on a port once it is ready; "" before."""
    try:
        caller = Caller(url_of(port))
    except OSError:
        return ""
    try:
        return caller.call("GET", "/readyz", b"")[0].decode()
    except RuntimeError:
        return ""
    finally:
        caller.close()


def _die_with_parent() -> None:
    die_with(os.getppid(), signal.SIGKILL)
