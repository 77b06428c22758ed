"""A file system whose device can be made slow or fail: FUSE, served by a forked child, over a plain folder.

The kernel passes every call to the child, which does it in the folder behind. While a fault is on, writes are slowed
or calls end with an error, so that callers meet the same system calls and errors as with a bad disk or a lost server.
Wire format: FUSE 7.31, include/uapi/linux/fuse.h. Needs root and /dev/fuse.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path

from turnout.cli.commands.child_env import die_with_parent

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_IN, _OUT, _ATTR = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ"), struct.Struct("<6Q10I")
_CONTROL = struct.Struct(
    "<qqdq"
)  # errno, calls let through before it, seconds a written MiB takes, calls that were hit
_LARGEST, _WRITE = 1 << 17, 16
_NO_ANSWER = (2, 42, 36)  # FORGET, BATCH_FORGET, INTERRUPT
_STORES = (9, 11, 12, 13, 16, 20, 30, 35, 45)  # MKDIR, RMDIR, RENAME, LINK, WRITE, FSYNC, FSYNCDIR, CREATE, RENAME2


class FaultyFilesystem:
    """Mounted at `at` within `with`; the files are in `behind`. Call it before this process has threads."""

    def __init__(self, at: Path, behind: Path) -> None:
        self.at, self._behind = at, behind
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._child = 0

    def __enter__(self) -> FaultyFilesystem:
        for folder in (self.at, self._behind):
            folder.mkdir(parents=True, exist_ok=True)
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        told = f"fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions".encode()
        if _libc.mount(b"chaos", os.fsencode(self.at), b"fuse", 0, told):
            raise OSError(ctypes.get_errno(), f"FUSE cannot be mounted at {self.at}")
        self._child = os.fork()
        if not self._child:
            die_with_parent()
            try:
                _serve(device, _Folder(self._behind, self._shared))
            finally:
                os._exit(0)
        os.close(device)
        return self

    def __exit__(self, *_: object) -> None:
        _libc.umount2(os.fsencode(self.at), _MNT_DETACH)
        os.kill(self._child, 9)
        os.waitpid(self._child, 0)

    def fail(self, number: int, after: int = 0) -> None:
        """Let every call that stores something end with this errno, once so many have passed."""
        self._shared[: _CONTROL.size] = _CONTROL.pack(number, after, 0.0, 0)

    def slow(self, mib_s: float) -> None:
        """Let writes take so long that so many MiB a second are stored."""
        self._shared[: _CONTROL.size] = _CONTROL.pack(0, 0, 1 / mib_s, 0)

    def heal(self) -> int:
        """Take the fault back. Returns how many calls it hit."""
        hit: int = _CONTROL.unpack_from(self._shared)[3]
        self._shared[: _CONTROL.size] = _CONTROL.pack(0, 0, 0.0, 0)
        return hit


class _Folder:
    """The calls, done in a folder. Nodes are numbered as they are looked up; 1 is the folder itself."""

    def __init__(self, root: Path, shared: mmap.mmap) -> None:
        self._paths, self._numbers = {1: os.fspath(root)}, {os.fspath(root): 1}
        self._shared = shared
        self._does: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: lambda node, body: self._attr_out(self._paths[node]),
            4: self._setattr,
            9: lambda node, body: self._made(node, body[8:], lambda path: os.mkdir(path, _u32(body, 0))),
            10: lambda node, body: self._gone(node, body, os.unlink),
            11: lambda node, body: self._gone(node, body, os.rmdir),
            12: lambda node, body: self._rename(node, _u64(body, 0), body[8:]),
            13: self._link,
            14: lambda node, body: self._opened(os.open(self._paths[node], _u32(body, 0) & ~os.O_NOFOLLOW)),
            15: lambda node, body: os.pread(_u64(body, 0), _u32(body, 16), _u64(body, 8)),
            _WRITE: self._write,
            17: self._statfs,
            18: self._closed,
            20: self._fsync,
            25: lambda node, body: b"",
            27: lambda node, body: self._opened(0),
            28: self._readdir,
            29: lambda node, body: b"",
            30: lambda node, body: b"",
            35: self._create,
            45: lambda node, body: self._rename(node, _u64(body, 0), body[16:]),
        }

    def do(self, call: int, node: int, body: bytes) -> bytes:
        """Carry out one call. Raises OSError, which is its answer."""
        number, after, mib_s, hit = _CONTROL.unpack_from(self._shared)
        if call in _STORES and (number or (mib_s and call == _WRITE)):
            spared = number != 0 and after > 0
            self._shared[: _CONTROL.size] = _CONTROL.pack(number, after - spared, mib_s, hit + (not spared))
            if number and not spared:
                raise OSError(number, "a fault")
            time.sleep((len(body) - 40) / 2**20 * mib_s)
        does = self._does.get(call)
        if does is None or node not in self._paths:
            raise OSError(errno.ENOSYS if does is None else errno.ESTALE, "")
        return does(node, body)

    def _path(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], os.fsdecode(name.rstrip(b"\0")))

    def _node(self, path: str) -> int:
        if path not in self._numbers:
            number = max(self._paths) + 1
            self._numbers[path], self._paths[number] = number, path
        return self._numbers[path]

    def _attr(self, path: str) -> bytes:
        it = os.lstat(path)
        whole = [int(each) for each in (it.st_atime, it.st_mtime, it.st_ctime)]
        rest = [each % 10**9 for each in (it.st_atime_ns, it.st_mtime_ns, it.st_ctime_ns)]
        more = (it.st_mode, it.st_nlink, it.st_uid, it.st_gid, 0, 4096, 0)
        return _ATTR.pack(it.st_ino, it.st_size, it.st_blocks, *whole, *rest, *more)

    def _attr_out(self, path: str) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attr(path)

    def _entry(self, path: str) -> bytes:
        attr = self._attr(path)
        return struct.pack("<QQQQII", self._node(path), 0, 0, 0, 0, 0) + attr

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._path(node, body))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, size, path = _u32(body, 0), _u64(body, 16), self._paths[node]
        if valid & 8:
            os.truncate(path, size)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(_u32(body, 68)))
        return self._attr_out(path)

    def _made(self, node: int, name: bytes, make: Callable[[str], None]) -> bytes:
        path = self._path(node, name)
        make(path)
        return self._entry(path)

    def _gone(self, node: int, name: bytes, remove: Callable[[str], None]) -> bytes:
        path = self._path(node, name)
        remove(path)
        self._numbers.pop(path, None)
        return b""

    def _rename(self, node: int, to: int, names: bytes) -> bytes:
        old, new = names.rstrip(b"\0").split(b"\0")
        before, after = self._path(node, old), self._path(to, new)
        os.rename(before, after)
        number = self._numbers.pop(before, None)
        if number is not None:
            self._paths[number], self._numbers[after] = after, number
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        path = self._path(node, body[8:])
        os.link(self._paths[_u64(body, 0)], path)
        return self._entry(path)

    def _opened(self, file: int) -> bytes:
        return struct.pack("<QII", file, 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        path = self._path(node, body[16:])
        file = os.open(path, _u32(body, 0), stat.S_IMODE(_u32(body, 4)))
        return self._entry(path) + self._opened(file)

    def _write(self, node: int, body: bytes) -> bytes:
        size = os.pwrite(_u64(body, 0), body[40 : 40 + _u32(body, 16)], _u64(body, 8))
        return struct.pack("<II", size, 0)

    def _statfs(self, node: int, body: bytes) -> bytes:
        it = os.statvfs(self._paths[1])
        counts = (it.f_blocks, it.f_bfree, it.f_bavail, it.f_files, it.f_ffree)
        return struct.pack("<5Q10I", *counts, it.f_bsize, 255, it.f_frsize, 0, *[0] * 6)

    def _closed(self, node: int, body: bytes) -> bytes:
        os.close(_u64(body, 0))
        return b""

    def _fsync(self, node: int, body: bytes) -> bytes:
        os.fsync(_u64(body, 0))
        return b""

    def _readdir(self, node: int, body: bytes) -> bytes:
        offset, most, out = _u64(body, 8), _u32(body, 16), b""
        for number, name in enumerate(sorted(os.listdir(self._paths[node]))[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", number, number, len(raw), 0) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(out) + len(entry) > most:
                break
            out += entry
        return out


def _serve(device: int, folder: _Folder) -> None:
    """Answer the kernel until the file system is unmounted."""
    while True:
        try:
            call = os.read(device, _LARGEST + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        size, code, unique, node, *_ = _IN.unpack_from(call)
        body = call[_IN.size : size]
        if code in _NO_ANSWER:
            continue
        try:
            answer, failed = _init(body) if code == 26 else folder.do(code, node, body), 0
        except OSError as error:
            answer, failed = b"", -(error.errno or errno.EIO)
        try:
            os.write(device, _OUT.pack(_OUT.size + len(answer), failed, unique) + answer)
        except OSError:  # who asked was killed meanwhile
            continue


def _init(body: bytes) -> bytes:
    readahead = _u32(body, 8)
    return struct.pack("<IIIIHHIIHHI7I", 7, 31, readahead, 0, 16, 12, _LARGEST, 1, 0, 0, 0, *[0] * 7)


def _u32(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 4], "little")


def _u64(body: bytes, at: int) -> int:
    return int.from_bytes(body[at : at + 8], "little")
