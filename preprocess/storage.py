"""Files on disk or, where a path is a URL, on object storage by fsspec. A written file appears whole or not at all.

Every function that takes a URL raises BadOption if fsspec does not know its scheme, or lacks the package for it.
"""

from __future__ import annotations

import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from turnout.preprocess.errors import BadOption

COPY_BYTES = 8 << 20  # bytes that are read or copied at once


def is_remote(path: str) -> bool:
    """Return True if a path is a URL, which fsspec opens."""
    return "://" in path


def open_input(path: str) -> IO[bytes]:
    """Open a file for reading, in binary form and with seek(); the caller closes it. path: a path or a URL.

    A local file is unbuffered: read(n) may return fewer than n bytes before the end. Raises OSError.
    """
    if is_remote(path):
        filesystem, name = _remote(path)
        remote_file: IO[bytes] = filesystem.open(name, "rb")
        return remote_file
    return open(path, "rb", buffering=0)


def read_range(path: str, start: int, end: int) -> bytes:
    """Return the bytes from offset `start` to before offset `end`.

    path: a path or a URL. Raises OSError if the file is shorter, or cannot be read.
    """
    with open_input(path) as file:
        file.seek(start)
        parts, missing = [], end - start
        while missing and (part := file.read(missing)):
            parts.append(part)
            missing -= len(part)
    if missing:
        raise OSError(f"{path}: the file ends {missing} bytes before offset {end}; it has become shorter")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_bytes(path: str) -> bytes:
    """Return the bytes of a whole file. path: a path or a URL. Raises OSError."""
    if is_remote(path):
        filesystem, name = _remote(path)
        content: bytes = filesystem.cat_file(name)
        return content
    with open(path, "rb") as file:
        return file.read()


def size_of(path: str) -> int:
    """Return a file's size in bytes. path: a path or a URL. Raises OSError, FileNotFoundError for a missing file."""
    if is_remote(path):
        filesystem, name = _remote(path)
        return int(filesystem.size(name))
    return os.stat(path).st_size


def exists(path: str) -> bool:
    """Return True if there is a file of this name; False for a folder. path: a path or a URL."""
    if is_remote(path):
        filesystem, name = _remote(path)
        return bool(filesystem.isfile(name))
    return os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Return True if there is a folder of this name; False for a file. path: a path or a URL."""
    if is_remote(path):
        filesystem, name = _remote(path)
        return bool(filesystem.isdir(name))
    return os.path.isdir(path)


def names_in(folder: str) -> list[str]:
    """Return the names of the files in a folder, without their paths, sorted; [] if there is no folder.

    folder: a path or a URL. Raises OSError.
    """
    if is_remote(folder):
        filesystem, name = _remote(folder)
        if not filesystem.isdir(name):
            return []
        entries = filesystem.ls(name, detail=True)
        return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] != "directory")
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as local_entries:
        return sorted(entry.name for entry in local_entries if entry.is_file())


def glob_files(pattern: str) -> list[str]:
    """Return the paths of the files that match a glob, sorted; [] for none. `**` matches folders at any depth.

    pattern: a path or a URL.
    """
    if is_remote(pattern):
        filesystem, name = _remote(pattern)
        entries = filesystem.glob(name, detail=True)
        return sorted(filesystem.unstrip_protocol(path) for path in entries if entries[path]["type"] != "directory")
    return sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


@contextmanager
def atomic_file(path: str, *, durable: bool = False, staging: str | None = None) -> Iterator[IO[bytes]]:
    """Write a file atomically: it appears at `path` only if the `with` block ends without an exception.

    If the block raises, `path` keeps its earlier content, or does not exist. A file system of fsspec that shows a file
    before it is complete loses the earlier content then. path: a path or a URL. durable: the bytes are on the disk
    before the name is, so that a power cut leaves no incomplete file at `path`. staging: the folder, on the same disk,
    in which the file is written first; None for the folder of `path`. Both have no effect on a URL.
    """
    if is_remote(path):
        filesystem, name = _remote(path)
        before = _entry(filesystem, name)
        file = filesystem.open(name, "wb", autocommit=False)
        try:
            yield file
            file.close()
        except BaseException:
            file.discard()
            if _entry(filesystem, name) not in (None, before):  # some file systems show the file before the commit
                filesystem.rm_file(name)
            raise
        file.commit()
        return
    folder, name = os.path.split(path)
    temporary = os.path.join(folder if staging is None else staging, f"{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb", buffering=0) as local_file:
            yield local_file
            if durable:
                os.fsync(local_file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_once(path: str, content: bytes) -> None:
    """Write a file if it does not exist, atomically, and durably on a disk. Raises OSError.

    If several processes do this at the same time, one of them writes the file. On object storage, and on a disk
    without hard links, a later one may replace it. path: a path or a URL.
    """
    if exists(path):
        return
    if is_remote(path):
        with atomic_file(path) as file:
            write_all(file, content)
        return
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with atomic_file(temporary, durable=True) as file:
        write_all(file, content)
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except FileExistsError:
        os.unlink(temporary)
    except OSError:  # a file system without hard links
        os.replace(temporary, path)


def write_all(file: IO[bytes], content: Any) -> None:
    """Write a whole buffer to a file, in several steps if an unbuffered file accepts only a part of it.

    content: a contiguous buffer; an empty numpy array is not allowed. Raises OSError.
    """
    rest = memoryview(content).cast("B")
    while len(rest):
        rest = rest[file.write(rest) :]


def make_folder(path: str) -> None:
    """Make a folder and those above it; do nothing if it exists. path: a path or a URL. Raises OSError."""
    if is_remote(path):
        filesystem, name = _remote(path)
        filesystem.makedirs(name, exist_ok=True)
    else:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Remove a file if it exists. path: a path or a URL. Raises OSError."""
    if is_remote(path):
        filesystem, name = _remote(path)
        if filesystem.exists(name):
            filesystem.rm_file(name)
    elif os.path.exists(path):
        os.unlink(path)


def remove_folder(path: str) -> None:
    """Remove a folder and its content; do nothing if it does not exist.

    What cannot be removed on a local disk stays, without an error. path: a path or a URL; for a URL the errors of
    fsspec are raised.
    """
    if is_remote(path):
        filesystem, name = _remote(path)
        if filesystem.exists(name):
            filesystem.rm(name, recursive=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def append_first_bytes(path: str, size_bytes: int, target: IO[bytes]) -> None:
    """Append the first `size_bytes` bytes of a file to an open file. Raises OSError if the file is shorter.

    path: of the file to read, a path or a URL. target: written at its position. Between local files the kernel copies,
    which is fast.
    """
    with open_input(path) as source:
        copied = size_bytes - _copy_by_kernel(source, target, size_bytes)
        while copied < size_bytes:
            part = source.read(min(COPY_BYTES, size_bytes - copied))
            if not part:
                raise OSError(f"{path}: shorter than the {size_bytes} bytes of its record")
            write_all(target, part)
            copied += len(part)


def _copy_by_kernel(source: IO[bytes], target: IO[bytes], size_bytes: int) -> int:
    """Copy with copy_file_range as many bytes as it can, and return how many of `size_bytes` are still missing.

    All are missing for files that the kernel cannot copy. source: must be at its start; afterwards it is at the first
    byte that is missing. target: the bytes are written at its position, which moves.
    """
    try:
        source_number, target_number = source.fileno(), target.fileno()
    except (OSError, AttributeError):
        return size_bytes
    missing = size_bytes
    while missing:
        try:
            copied = os.copy_file_range(source_number, target_number, missing)
        except OSError:  # two file systems, or one without the call
            break
        if not copied:
            break
        missing -= copied
    source.seek(size_bytes - missing)
    return missing


def _entry(filesystem: Any, name: str) -> Any:
    """Return what an fsspec file system knows about a file, such as its size and time; None for a missing file."""
    try:
        return filesystem.info(name)
    except FileNotFoundError:
        return None


def _remote(path: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises BadOption for an unknown scheme, or one whose package is missing.
    """
    import fsspec

    try:
        filesystem, name = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise BadOption(f"{path}: {error}") from error
    return filesystem, name
