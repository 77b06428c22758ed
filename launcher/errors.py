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
