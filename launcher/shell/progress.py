"""How far each training process is: words in a file of memory that its agent reads, and the step at which all stop.

Both sides are here. `Steps` is for the training loop, three lines of it; without an agent it does nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

PROGRESS = "TURNOUT_PROGRESS_FILE"
_WORD = struct.Struct("<q")
_DONE, _SAVED, _WAITS, _STOP, _SURE = (8 * at for at in range(5))
_BYTES = 4_096
_LOOK_S = 0.001


class _Words:
    """64-bit words in a shared file. Each has one writer, and a word is written whole."""

    def __init__(self, path: str | Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size < _BYTES:
                raise ValueError(f"{path} is no file of progress: it is too short")
            self._map = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)

    def read(self, at: int) -> int:
        return int(_WORD.unpack_from(self._map, at)[0])

    def write(self, at: int, value: int) -> None:
        _WORD.pack_into(self._map, at, value)

    def close(self) -> None:
        self._map.close()


class Steps:
    """In the training loop: `for step in steps.count(start): train(); ...; if steps.done(step): save(); break`."""

    def __init__(self) -> None:
        path = os.environ.get(PROGRESS, "")
        self._words = _Words(path) if path else None

    def count(self, start: int = 0) -> Iterator[int]:
        """start, start + 1, and so on."""
        step = start
        while True:
            yield step
            step += 1

    def done(self, step: int) -> bool:
        """Tell that this step is done. Is it the last one for now? Then save and leave the loop, as all ranks do.

        Waits where the others still have to agree that nobody is past it.
        """
        if self._words is None:
            return False
        words = self._words
        words.write(_DONE, step)
        if not 0 <= words.read(_STOP) <= step:
            return False
        words.write(_WAITS, 1)
        while not words.read(_SURE):
            if words.read(_STOP) > step or words.read(_STOP) < 0:
                break
            time.sleep(_LOOK_S)
        words.write(_WAITS, 0)
        return bool(words.read(_SURE)) and words.read(_STOP) <= step

    def saved(self, step: int) -> None:
        """Tell that this step is saved: it will never be trained again, and restarts are counted afresh."""
        if self._words is not None:
            self._words.write(_SAVED, step)


class Watched:
    """The agent's side: one file for each of its processes, new for each round."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.paths = [folder / f"progress-{local_rank}" for local_rank in range(processes)]
        self._words: list[_Words] = []
        for path in self.paths:
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(b"".join(map(_WORD.pack, (-1, -1, 0, -1, 0))).ljust(_BYTES, b"\0"))
            self._words.append(_Words(path))

    def done(self) -> int:
        """The newest step that all processes have done, -1 for none or when one does not tell."""
        return min(words.read(_DONE) for words in self._words)

    def saved(self) -> int:
        """The newest step that any process has saved, -1 for none."""
        return max(words.read(_SAVED) for words in self._words)

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Stop after this step. Gives the farthest step that a process may have begun, as far as can be seen now."""
        for words in self._words:
            words.write(_STOP, step)
            words.write(_SURE, int(sure))
        return max(words.read(_DONE) + (not words.read(_WAITS)) for words in self._words)

    def close(self) -> None:
        """Remove the files; a process that still has one keeps it."""
        for words, path in zip(self._words, self.paths, strict=True):
            words.close()
            path.unlink(missing_ok=True)
