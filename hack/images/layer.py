"""Makes a layer of an image: a gzipped tar whose bytes are a function of its files and of nothing else.

All files belong to root, have the same time stamp, and are sorted by name. recipes.py decides what is in a layer.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

EPOCH_S = 1_767_225_600  # 2026-01-01: the time of every file in a wheel and in an image


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a link or a folder of an image."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""  # the target of a link
    folder: bool = False  # True for a folder without content


Files = Mapping[str, Entry]  # by path without the leading slash


def pack_layer(files: Files) -> tuple[bytes, bytes]:
    """Return (tar archive of the files, the same archive compressed by gzip). Equal files give equal bytes."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted(with_folders(files).items()):
            tar.addfile(_header(path, entry), io.BytesIO(entry.data))
    plain = into.getvalue()
    return plain, gzip.compress(plain, compresslevel=6, mtime=0)


def with_folders(files: Files) -> dict[str, Entry]:
    """Return the files, and the folders above every entry. A folder that is not in `files` has mode 0755."""
    above = {str(parent) for path in files for parent in PurePosixPath(path).parents if str(parent) != "."}
    return {path: Entry(mode=0o755, folder=True) for path in above} | dict(files)


def _header(path: str, entry: Entry) -> tarfile.TarInfo:
    """Return the tar header of a file, folder or link, owned by root, with the fixed time EPOCH_S."""
    header = tarfile.TarInfo(path)
    header.mtime, header.mode = EPOCH_S, entry.mode
    header.uname = header.gname = ""
    if entry.link:
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, entry.link, 0o777
    elif entry.folder:
        header.type = tarfile.DIRTYPE
    else:
        header.size = len(entry.data)
    return header
