"""Defines the launcher's errors: one class for each thing that a caller can do about it."""

from __future__ import annotations


class LauncherError(Exception):
    """The base class of the launcher's errors."""


class BadElasticSpec(LauncherError):
    """The job's bounds are invalid. Correct the command line."""


class BadMember(LauncherError):
    """The worker's description of itself is invalid. Refuse the worker, and continue with the others."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"worker {name!r}: {fault}")
        self.name, self.fault = name, fault


class BadFrame(LauncherError):
    """The bytes from a socket are no valid message. Close the connection."""


class BadState(LauncherError):
    """A value cannot be saved. Omit it from the state, or convert it to tensors and plain values.

    path: the keys that lead to the value, joined by "/"; "" for the whole state.
    """

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(f"{path or 'the state'}: {fault}")
        self.path, self.fault = path, fault

    def __reduce__(self) -> tuple[type[BadState], tuple[str, str]]:
        return type(self), (self.path, self.fault)  # picklable, since torch's collectives carry errors between ranks


class BadCheckpoint(LauncherError):
    """The bytes differ from those that were written: incomplete, foreign or corrupt. Use an older step or another copy.

    Catch the subclass NewerFormat first: it forbids an older step.
    """


class NewerFormat(BadCheckpoint):
    """The data is intact, but its format is newer than this version knows. Install a newer version; do not fall back
    to older data.

    what: the kind of data. format: its number. known: the newest number that this version knows.
    """

    def __init__(self, what: str, format: int, known: int) -> None:
        super().__init__(
            f"{what} of format {format}: this Turnout knows formats up to {known}; install the one that wrote it, or a "
            "newer one"
        )
        self.what, self.format, self.known = what, format, known

    def __reduce__(self) -> tuple[type[NewerFormat], tuple[str, int, int]]:
        return type(self), (self.what, self.format, self.known)


class NoMemory(LauncherError):
    """The memory for checkpoints is not available. advice: YAML to add to the pod, "" for none."""

    def __init__(self, fault: str, advice: str = "") -> None:
        super().__init__(f"{fault}\n{advice}" if advice else fault)
        self.fault, self.advice = fault, advice


class StorageFailed(LauncherError):
    """Storage failed to read or write. Training continues, and memory still has the checkpoint; try another target."""


class NotUsable(LauncherError, ImportError):
    """A library is missing or too old. Install what the message names."""

    def __init__(self, library: str, fault: str) -> None:
        super().__init__(f"{library} {fault}: pip install 'turnout[launcher,adapters]'")
        self.library, self.fault = library, fault


class BadCheck(LauncherError):
    """A node check has invalid settings or results. If results: do not ask their sender again."""


class BadStacks(LauncherError):
    """A file has no stack traces. Report its rank, and continue with the other files."""


class ProbeFailed(LauncherError):
    """A probe cannot continue. Its measurements so far are reported with this text."""


class BadSettings(LauncherError):
    """The settings are invalid. Print the message and end with exit code 2."""
