"""What the launcher raises: one class per thing that a caller can do about it."""

from __future__ import annotations


class LauncherError(Exception):
    """The base of all of them."""


class BadTerms(LauncherError):
    """A job whose bounds cannot be kept as written. Mend the command line."""


class BadMember(LauncherError):
    """A worker that cannot take part as it describes itself. Refuse it, go on with the others."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"worker {name!r}: {fault}")
        self.name, self.fault = name, fault


class BadFrame(LauncherError):
    """Bytes from a socket that are no message of ours. Close that connection."""
