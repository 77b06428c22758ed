"""Define the errors of the extender: one class for each thing that a caller can do about it."""

from __future__ import annotations


class ExtenderError(Exception):
    """Base of all errors of this package."""


class BadRequest(ExtenderError):
    """A body that cannot be answered as written. Tell the caller; the text quotes nothing of the body."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


class BadCertificate(ExtenderError):
    """A certificate, key or CA that cannot be used. Keep the one in use; without one, do not start."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault
