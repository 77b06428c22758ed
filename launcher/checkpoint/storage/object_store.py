"""Stores steps in an object store through fsspec: whole objects, the manifest last.

An object appears when its last byte is stored, so there are no unfinished files and nothing to sync. Parts of an
interrupted upload expire by a rule of the bucket. fsspec is imported when needed. Local paths are stored by
posix_store.py, since fsspec does not sync.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from turnout.launcher.checkpoint.storage.store import FileInfo, step_name, step_of, storage_failure
from turnout.launcher.errors import BadCheckpoint, LauncherError, StorageFailed

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class ObjectStore:
    """Stores steps at an fsspec URL. Raises StorageFailed if the URL cannot be opened, also without fsspec."""

    def __init__(self, url: str) -> None:
        self.name = _without_secrets(url)
        with self._storage_errors("opening it"):
            import fsspec.core

            self._fs, self._path = fsspec.core.url_to_fs(url)

    def prepare(self) -> None:
        """Create the folder of the URL, where the store has folders. Raises StorageFailed if the store refuses."""
        with self._storage_errors("making it"):
            self._fs.makedirs(self._path, exist_ok=True)

    def steps(self) -> tuple[int, ...]:
        """List the steps that have any object, oldest first. Raises StorageFailed if the store cannot be listed."""
        with self._storage_errors("listing the steps"):
            numbers = {step_of(name) for name in _list(self._fs, self._path)}
        return tuple(sorted(step for step in numbers if step is not None))

    def files(self, step: int) -> Mapping[str, FileInfo]:
        """Return size and time of the objects of a step, by name; {} if there are none.

        Raises StorageFailed if the step cannot be listed.
        """
        with self._storage_errors(f"listing step {step}"):
            entries = _list(self._fs, f"{self._path}/{step_name(step)}")
            return {
                name: FileInfo(int(each["size"]), _time(each)) for name, each in entries.items() if _is_object(each)
            }

    def put(self, step: int, name: str, pieces: Iterable[memoryview], *, round_number: int, replace: bool) -> str:
        """Write an object of a step, and return the name that it has.

        Without `replace`, the name gets a random part, so that two writers never collide. round_number: not used.
        Raises StorageFailed if the object cannot be written, and the errors of `pieces`: LauncherErrors unchanged,
        others as StorageFailed. Then the store has no new object, unless it failed at the very end.
        """
        if not replace:  # uploads are slow, and of two with one name the later would win: use unique names
            stem, dot, kind = name.rpartition(".")
            name = f"{stem}.{secrets.token_hex(8)}{dot}{kind}"
        with self._storage_errors(f"writing {name} of step {step}"):
            # Most stores need no folders, or refuse to make them; a write reports real faults.
            with suppress(Exception):
                self._fs.makedirs(f"{self._path}/{step_name(step)}", exist_ok=True)
            if replace:  # small and in one call: readers see the old or the new object
                self._fs.pipe_file(self._path_of(step, name), b"".join(pieces))
            else:
                self._upload(self._path_of(step, name), pieces)
        return name

    def _upload(self, path: str, pieces: Iterable[memoryview]) -> None:
        """Upload a large object in parts. Raises the errors of the store and of `pieces`.

        After an error, try to remove the object, since some stores show a part of it.
        """
        file = self._fs.open(path, "wb", autocommit=False)
        try:
            for piece in pieces:
                file.write(piece)
            file.close()
            file.commit()
        except BaseException:
            with suppress(Exception):
                file.discard()
            with suppress(Exception):
                self._fs.rm_file(path)
            raise

    def read(self, step: int, name: str, max_bytes: int) -> bytes | None:
        """Return the content of a small object of a step; None if it does not exist.

        Raises BadCheckpoint if it has more than `max_bytes`, and StorageFailed if it cannot be read.
        """
        with self._storage_errors(f"reading {name} of step {step}"):
            try:
                size = int(self._fs.info(self._path_of(step, name))["size"])
                if size > max_bytes:
                    raise BadCheckpoint(f"{name} of step {step} has more than {max_bytes} bytes")
                return bytes(self._fs.cat_file(self._path_of(step, name)))
            except FileNotFoundError:
                return None

    @contextmanager
    def open_file(self, step: int, name: str) -> Iterator[_Object]:
        """Open an object of a step for reads of ranges, within a block.

        Raises BadCheckpoint if it does not exist, also if it disappears within the block, and StorageFailed if the
        store fails. Any other error in the block than a LauncherError becomes StorageFailed, too.
        """
        with self._storage_errors(f"reading {name} of step {step}"):
            try:
                size = int(self._fs.info(self._path_of(step, name))["size"])
                yield _Object(self._fs, self._path_of(step, name), f"{name} of step {step}", size)
            except FileNotFoundError as error:
                raise BadCheckpoint(f"{name} of step {step} is gone") from error

    def remove(self, step: int, names: Iterable[str]) -> None:
        """Delete objects of a step in this order, and its folder if that is empty then.

        Missing objects are ignored. Raises StorageFailed if an object cannot be deleted; then some may be deleted.
        """
        with self._storage_errors(f"removing step {step}"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path_of(step, name))
            folder = f"{self._path}/{step_name(step)}"
            if not _list(self._fs, folder):
                with suppress(Exception):  # most stores have no folders
                    self._fs.rmdir(folder)

    def sweep(self, step: int, now_s: float, older_than_s: float, ranks: Mapping[int, int]) -> tuple[str, ...]:
        """Return (): an object store has no unfinished files."""
        return ()

    def _path_of(self, step: int, name: str) -> str:
        """Return the path of an object in the file system of fsspec."""
        return f"{self._path}/{step_name(step)}/{name}"

    @contextmanager
    def _storage_errors(self, doing: str) -> Iterator[None]:
        """Convert every error of a store within the block to StorageFailed, whatever its class; LauncherErrors pass.

        doing: the action, for the message.
        """
        try:
            yield
        except LauncherError:
            raise
        except ImportError as error:
            why = f"{error}: install fsspec, and the part of it that knows this store"
            raise StorageFailed(f"{self.name}: {doing}: {why}") from error
        except OSError as error:
            raise storage_failure(self.name, doing, error) from error
        except Exception as error:
            raise StorageFailed(f"{self.name}: {doing}: {type(error).__name__}: {error}") from error


def _list(fs: Any, path: str) -> dict[str, dict[str, Any]]:
    """Return the entries directly below a path, as fsspec describes them, by the last part of their name.

    {} if the path does not exist or is a file. fsspec's cache is not used, since others write there too. Raises what
    `fs.ls` raises.
    """
    fs.invalidate_cache()
    try:
        entries = fs.ls(path, detail=True)
    except FileNotFoundError:
        return {}
    return {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in entries if each["name"] != path}


class _Object:
    """Reads a stored shard in ranges."""

    at_once_bytes = 8 << 20  # each range is a request

    def __init__(self, fs: Any, path: str, name: str, size_bytes: int) -> None:
        self._fs, self._path, self._name, self.size_bytes = fs, path, name, size_bytes

    def fill(self, view: memoryview, offset: int) -> None:
        """Fill the view with the object's bytes from `offset` on. Raises BadCheckpoint if the object is too short, and
        the errors of the store.
        """
        content = self._fs.cat_file(self._path, start=offset, end=offset + view.nbytes)
        if len(content) != view.nbytes:
            raise BadCheckpoint(f"{self._name} ends at byte {offset + len(content)}")
        view[:] = content

    def forget(self, offset: int, size_bytes: int) -> None:
        """Do nothing: no bytes are cached here."""


def _is_object(about: Mapping[str, Any]) -> bool:
    """Return True for a plain object, by fsspec's description."""
    return about.get("type") == "file" and not about.get("islink", False)


def _time(about: Mapping[str, Any]) -> float | None:
    """Return the time of the last change of an object, in seconds since 1970.

    None if the file system gives no time. about: the file system's description of the object.
    """
    for key in _TIMES:
        match about.get(key):
            case datetime() as time:
                return time.timestamp()
            case int() | float() as time:
                return float(time)
    return None


def _without_secrets(url: str) -> str:
    """Return the URL for logs: without user, password and query."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
