"""Knows the folder for stack traces: where it is, who may read it, and that each file in it is complete."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

_NAME = "turnout-stacks"


class StackFolder:
    """A folder for stack traces: the one that the user named, or one in the temporary folder for this user alone.

    A stack trace shows code and names of files. Anybody may make a folder or a link of our name in the temporary folder
    first; then a fresh one beside it is used.
    """

    def __init__(self, named: str, temporary: Path | None = None) -> None:
        self._private = not named
        self.path = Path(named) if named else (temporary or Path(tempfile.gettempdir())) / _NAME

    def keep(self, files: Mapping[int, bytes], world: int) -> None:
        """Write one file per rank, and remove those of worlds of other sizes. Raises OSError."""
        self._make()
        for old in self.path.glob("[0-9]*-*.stacktrace"):
            if not old.name.endswith(f"-{world:05}.stacktrace"):
                old.unlink(missing_ok=True)
        self.write({f"{rank:05}-{world:05}.stacktrace": content for rank, content in files.items()})

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by name. Agents of several hosts may write the same name in a shared folder. Raises OSError."""
        self._make()
        for name, content in files.items():
            new = self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(new, flags, 0o600 if self._private else 0o666), "wb") as file:
                file.write(content)
            new.replace(self.path / name)

    def _make(self) -> None:
        if not (self._private and os.path.lexists(self.path)):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._private and not self._is_ours():
            self.path = Path(tempfile.mkdtemp(prefix=f"{_NAME}-", dir=self.path.parent))

    def _is_ours(self) -> bool:
        """True if the folder belongs to this user. Others lose the right to read it."""
        about = self.path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return False
        if about.st_mode & 0o077:
            self.path.chmod(0o700)
        return True
