"""Locks the rounds of a job with numbered files on shared storage, each of which can be created only once.

    round-0000000007.json   the record granted by the seventh claim; it never changes
    holder-0000000007       rewritten by the holder; while it changes, the holder is alive
    .claim-…, .holder-…     unfinished files; the next successful claim removes them

A claim is for the number after the newest one seen, so only one of several such claims succeeds. Clocks are not used.
It relies only on what NFS guarantees: a link to an existing name fails, a rename replaces a file at once, and opening a
name gives its newest file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import (
    MOST_BYTES,
    BadRecord,
    HeldRound,
    LockRefused,
    LockUnreachable,
    record_to_write,
    same_grant,
    seal,
    unseal,
)
from turnout.launcher.rendezvous.locks.round_lock import RoundLock

T = TypeVar("T")


class SerialExecutor:
    """Runs blocking calls in order. limit_s: of one call, including its wait for earlier calls."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._turn = asyncio.Lock()
        self._last: concurrent.futures.Future[Any] | None = None

    async def call(self, do: Callable[[], T]) -> T:
        """Run `do` and return or raise what it does. Raises TimeoutError; `do` may still finish later, before the next
        call starts.
        """
        async with asyncio.timeout(self.limit_s), self._turn:
            if self._last is not None and not self._last.done():
                with suppress(Exception):  # its caller gets the error, or has given up
                    await asyncio.wrap_future(self._last)
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
            self._last = future
            threading.Thread(target=_finish, args=(do, future), name="arbiter", daemon=True).start()
            return await asyncio.wrap_future(future)


def _finish(do: Callable[[], T], future: concurrent.futures.Future[T]) -> None:
    """Call a function in this thread, and put its result or exception into the future."""
    try:
        future.set_result(do())
    except BaseException as error:  # raised in the caller
        future.set_exception(error)


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_REFUSALS = {
    errno.EROFS: "mount it writable",
    errno.EACCES: "give it to the user of the workers",
    errno.EPERM: "give it to the user of the workers",
    errno.ENOTDIR: "name a folder",
    errno.ELOOP: "name a folder",
    errno.ENAMETOOLONG: "name a shorter one",
}


class SharedDir:
    """A shared folder. All calls block, and raise LockRefused or LockUnreachable if storage fails."""

    def __init__(self, path: Path, link: Callable[..., None] = os.link) -> None:
        self.path, self.name, self._link = path, f"round folder {path}", link

    def prepare(self) -> None:
        """Create the folder if it is missing, make it private, and check that storage supports what a lock needs.

        The parent must exist: a missing mount must not become a folder of this host.
        """
        with self._lock_errors():
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                step = "mount the shared storage, or name a folder on it"
                raise LockRefused(self.name, f"{self.path.parent} is not there", step) from error
        with self.opened() as at:
            self._check_storage(at)
            if stat.S_IMODE(os.fstat(at).st_mode) & 0o077:
                os.fchmod(at, 0o700)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder for the other calls. They keep using this folder even if the path changes."""
        with self._lock_errors():
            at = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield at
            finally:
                os.close(at)

    def read(self, at: int, name: str) -> bytes | None:
        """Read a file, None if it does not exist. Raises BadRecord for a file that no member wrote."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EACCES):  # a symbolic link, a socket, or no permission
                raise BadRecord(f"cannot be opened: {error.strerror}") from error
            raise
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.fstat(at).st_uid:
                raise BadRecord("no file, or not of the folder's owner")
            with open(file, "rb", closefd=False) as content:
                return content.read(MOST_BYTES + 1)
        finally:
            os.close(file)

    def make(self, at: int, name: str, content: bytes) -> None:
        """Write a new private file and sync it to disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=at), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, at: int, private: str, name: str) -> bool:
        """Link the private file to a name; True if it got it. Of several at once only one succeeds, and none if the
        name exists.
        """
        try:
            self._link(private, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
        except FileExistsError:  # also when the server linked it and its answer was lost: then it is the same file
            if not self._is_same_file(at, private, name):
                return False
        except FileNotFoundError:  # a faster claimant has swept it away
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                why, step = f"its storage makes no hard links ({error.strerror})", "use a Lease, or other storage"
                raise LockRefused(self.name, why, step) from error
            raise
        self.sync(at)
        return True

    def sync(self, at: int) -> None:
        """Sync the folder, so that new names are on disk. Storage that cannot sync folders is left as it is."""
        try:
            os.fsync(at)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
                raise

    def replace(self, at: int, private: str, name: str) -> None:
        """Rename the private file over whatever has the name.

        Does nothing if the private file was removed meanwhile.
        """
        with suppress(FileNotFoundError):
            os.replace(private, name, src_dir_fd=at, dst_dir_fd=at)

    def sweep(self, at: int, names: Iterable[str]) -> None:
        """Remove files. A file that cannot be removed stays."""
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=at)

    def _is_same_file(self, at: int, one: str, other: str) -> bool:
        """Return True if two names in the folder are one file; False if one of them is missing."""
        try:
            files = [os.stat(name, dir_fd=at, follow_symlinks=False) for name in (one, other)]
        except FileNotFoundError:
            return False
        return os.path.samestat(*files)

    def _check_storage(self, at: int) -> None:
        """Test storage by writing and linking a file as a claim does. Raises LockRefused if the folder's owner is
        another user.
        """
        trial = f".claim-{0:010}-{secrets.token_hex(8)}"  # round 0: any successful claim sweeps it away
        try:
            self.make(at, trial, b"")
            with suppress(FileNotFoundError):
                ours, theirs = os.stat(trial, dir_fd=at, follow_symlinks=False).st_uid, os.fstat(at).st_uid
                if ours != theirs:
                    why = f"it belongs to uid {theirs}, and we write as uid {ours}"
                    step = "run all workers as one user, or name another folder"
                    raise LockRefused(self.name, why, step)
            self.publish(at, trial, f"{trial}-linked")
        finally:
            self.sweep(at, [trial, f"{trial}-linked"])

    @contextmanager
    def _lock_errors(self) -> Iterator[None]:
        """Convert OSError within the block to LockRefused, if its number has a known remedy, or to LockUnreachable."""
        try:
            yield
        except OSError as error:
            why = f"{error.strerror or error} (as uid {os.geteuid()})"
            if step := _REFUSALS.get(error.errno or 0):
                raise LockRefused(self.name, why, step) from error
            raise LockUnreachable(self.name, why) from error


log = logging.getLogger(__name__)

CALL_S = 5.0

KEPT_ROUNDS = 8  # round files kept for people to read

_MOST = 9_999_999_999

_REACH = 1_000  # an unreadable file so far above the newest readable one is not a round file

_ROUND = re.compile(r"round-(\d{10})\.json")

_ANY = re.compile(r"(round-|holder-|\.claim-|\.holder-)(\d{10})(?!\d)")


@dataclass(frozen=True, slots=True)
class _FolderObservation:
    """One look at the folder of round files: its newest round and that round's holder."""

    names: frozenset[str]
    number: int = 0  # of the newest round file, 0 for none
    record: RoundRecord | None = None
    holder: bytes | None = None  # the last text that its holder wrote


class FileLock(RoundLock):
    """Gives one member access to its job's round files. All members must name the same folder."""

    kind = "round_file"

    def __init__(
        self, folder: Path, run: str, *, call_s: float = CALL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the folder and run. call_s: the longest time of a call; slower storage counts as unreachable."""
        super().__init__(run, monotonic)
        self._folder, self._aside, self._logged_names = SharedDir(folder), SerialExecutor(call_s), set[str]()

    @classmethod
    async def open(cls, folder: Path, run: str, *, call_s: float = CALL_S) -> FileLock:
        """Check that the folder can be used. Raises LockRefused and LockUnreachable."""
        arbiter = cls(folder, run, call_s=call_s)
        await arbiter._call(arbiter._folder.prepare)
        return arbiter

    async def look(self) -> HeldRound:
        """Return the round of the newest file."""
        return self._held_round(await self._call(self._look))

    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Create the round file after the one in `after`. None if another member was first."""
        record = record_to_write(record, after)
        observation = await self._call(lambda: self._claim(record, after.token))
        return self._own_round(observation) if observation else None

    async def renew(self, mine: HeldRound) -> HeldRound | None:
        """Rewrite the holder's file. None if there is a newer round, or if this member's round file is gone."""
        record = mine.record
        if record is None:
            return None
        observation = await self._call(lambda: self._renew(record, _number(mine.token)))
        return self._own_round(observation) if observation else None

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    async def _call(self, what: Callable[[], T]) -> T:
        """Call a function in the thread for file operations. Raises LockUnreachable if it takes too long."""
        try:
            return await self._aside.call(what)
        except TimeoutError as error:
            raise LockUnreachable(self._folder.name, f"no answer within {self._aside.limit_s:g} s") from error

    def _look(self) -> _FolderObservation:
        with self._folder.opened() as at:
            return self._observe(at)

    def _claim(self, record: RoundRecord, after: str) -> _FolderObservation | None:
        """Publish a record as the round that follows `after`.

        Returns the folder's new observation; None if another candidate was first. Raises LockRefused if the numbers are
        used up. after: file name of the newest round, "" for none.
        """
        number = _number(after) + 1
        if number > _MOST:
            raise LockRefused(self._folder.name, f"{after} is the last one there can be", "empty the folder")
        name, private = _name(number), f".claim-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            newest = self._observe(at)  # read again: its holder may have changed the budget since
            if newest.number == number - 1 and newest.record and newest.record.run == record.run:
                record = replace(record, budget=record.budget.newer(newest.record.budget))
            try:
                self._folder.make(at, private, seal(record))
                if not self._folder.publish(at, private, name):
                    return None
            finally:
                self._folder.sweep(at, [private])
            observation = self._observe(at)
            if (
                after and after not in observation.names
            ):  # an old claim: its number is free only because the file was swept
                self._folder.sweep(at, [name])
                return None
            if observation.number != number:
                return None
            self._folder.sweep(at, _outlived(observation.names, number))
            return observation

    def _renew(self, record: RoundRecord, number: int) -> _FolderObservation | None:
        """Write the holder's file again, which shows that the holder lives.

        Returns the folder's new observation; None if the round is no longer ours.
        """
        private = f".holder-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            if not self._is_granted(at, number, record):
                return None
            try:
                self._folder.make(at, private, seal(record, next(self._beats)))
                self._folder.replace(at, private, _holder(number))
            finally:
                self._folder.sweep(at, [private])
            observation = self._observe(at)  # after the write, which makes an NFS client drop its cached directory
            return observation if observation.number == number else None

    def _is_granted(self, at: int, number: int, record: RoundRecord) -> bool:
        """Return True if the file of a round holds this record's grant. at: file descriptor of the folder."""
        try:
            granted = self._read(at, _name(number))
        except BadRecord as error:
            self._log_unreadable(_name(number), error)
            return False
        return granted is not None and same_grant(granted, record)

    def _observe(self, at: int) -> _FolderObservation:
        """Read the newest valid round in the folder, and its holder.

        An unreadable file of a newer round counts as a round of an unknown holder. at: file descriptor of the folder.
        """
        names = frozenset(os.listdir(at))
        numbers = sorted((int(found[1]) for name in names if (found := _ROUND.fullmatch(name))), reverse=True)
        torn, number, record = list[int](), 0, None
        for each in numbers:
            try:
                record = self._read(at, _name(each))
            except BadRecord as error:
                self._log_unreadable(_name(each), error)
                torn.append(each)
            if record is not None:
                number = each
                break
        if doubtful := max((each for each in torn if each <= number + _REACH), default=0):
            record, number = self._unknown(doubtful, number, record), doubtful
        if record is None:
            return _FolderObservation(names)
        return self._with_holder(at, _FolderObservation(names, number, record))

    def _with_holder(self, at: int, observation: _FolderObservation) -> _FolderObservation:
        """Add the restart budget and the totals that the holder wrote last."""
        try:
            holder = self._folder.read(at, _holder(observation.number))
            held_record = unseal(holder) if holder is not None else None
        except BadRecord:  # it does not count: the next renewal writes a whole one
            return observation
        if held_record and observation.record and same_grant(held_record, observation.record):
            budget = observation.record.budget.newer(held_record.budget)
            record = replace(observation.record, budget=budget, totals=held_record.totals)
            observation = replace(observation, record=record)
        return replace(observation, holder=holder)

    def _unknown(self, number: int, before: int, record: RoundRecord | None) -> RoundRecord:
        """Make the record of a round whose file is unreadable. Another member may hold it, so its holder must first be
        quiet.
        """
        if record is None or record.run != self._run:
            return RoundRecord(self._run, number, "")
        return replace(record, round=max(number, record.round + number - before), coordinator="", address="", port=0)

    def _read(self, at: int, name: str) -> RoundRecord | None:
        """Read a round file; None if it does not exist. Raises BadRecord."""
        content = self._folder.read(at, name)
        return None if content is None else unseal(content)

    def _log_unreadable(self, name: str, error: BadRecord) -> None:
        if name not in self._logged_names:
            self._logged_names.add(name)
            log.warning("round_unreadable", extra={"file": str(self._folder.path / name), "why": str(error)})

    def _held_round(self, observation: _FolderObservation) -> HeldRound:
        token = _name(observation.number) if observation.number else ""
        return self._observe_round(observation.record, token, (observation.number, observation.holder))

    def _own_round(self, observation: _FolderObservation) -> HeldRound:
        return replace(self._held_round(observation), quiet_s=0.0)


def _name(number: int) -> str:
    return f"round-{number:010}.json"


def _holder(number: int) -> str:
    return f"holder-{number:010}"


def _number(token: str) -> int:
    return int(token[6:16]) if token else 0


def _outlived(names: frozenset[str], number: int) -> Sequence[str]:
    """List the files that nobody needs once round file `number` exists."""
    oldest = {"round-": number - KEPT_ROUNDS + 1, "holder-": number, ".claim-": number + 1, ".holder-": number}
    found = ((name, _ANY.match(name)) for name in sorted(names))
    return [name for name, parts in found if parts and int(parts[2]) < oldest[parts[1]]]
