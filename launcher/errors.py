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


class BadState(LauncherError):
    """A value that cannot be saved. path: its keys, joined by "/". Leave it out, or turn it into tensors and words."""

    def __init__(self, path: str, fault: str) -> None:
        super().__init__(f"{path or 'the state'}: {fault}")
        self.path, self.fault = path, fault

    def __reduce__(self) -> tuple[type[BadState], tuple[str, str]]:
        return type(self), (self.path, self.fault)  # torch's collectives carry errors from rank to rank


class BadCheckpoint(LauncherError):
    """Bytes that are not what was written: torn, foreign or flipped. Take the next older or farther copy."""


class NewerFormat(BadCheckpoint):
    """Whole, but of a format that came later than this Turnout. Nothing older is taken for it: load it with a newer."""

    def __init__(self, what: str, format: int, known: int) -> None:
        super().__init__(
            f"{what} of format {format}: this Turnout knows formats up to {known}; install the one that wrote it, or a "
            "newer one"
        )
        self.what, self.format, self.known = what, format, known

    def __reduce__(self) -> tuple[type[NewerFormat], tuple[str, int, int]]:
        return type(self), (self.what, self.format, self.known)


class NoMemory(LauncherError):
    """The memory for checkpoints is not there. advice: what to add, as YAML."""

    def __init__(self, fault: str, advice: str = "") -> None:
        super().__init__(f"{fault}\n{advice}" if advice else fault)
        self.fault, self.advice = fault, advice


class StorageFailed(LauncherError):
    """Storage did not take or give what it was asked for. Training goes on from memory; try another target."""


class NotUsable(LauncherError, ImportError):
    """A library that is not there, or is too old. Install what the message names."""

    def __init__(self, library: str, fault: str) -> None:
        super().__init__(f"{library} {fault}: pip install 'turnout[launcher,adapters]'")
        self.library, self.fault = library, fault


class BadCheck(LauncherError):
    """Results of a health check that cannot be. Whoever measured so is not asked again."""


class BadStacks(LauncherError):
    """A file in which no stack can be found. Tell whose it is, and go on with the others."""


class ProbeFailed(LauncherError):
    """A probe that cannot go on. What it has measured so far is told, with this text."""


class BadSettings(LauncherError):
    """Settings that cannot be obeyed. Say so and end with exit code 2."""
