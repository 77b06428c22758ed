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
    MAX_BYTES,
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
    """Runs blocking calls one after another, each in a thread. limit_s: seconds for one call and its wait for earlier
    calls.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._turn = asyncio.Lock()
        self._last: concurrent.futures.Future[Any] | None = None

    async def call(self, do: Callable[[], T]) -> T:
        """Run `do` in a thread; return its result or raise its error. Raises TimeoutError after `limit_s`; `do` then
        continues, and the next call starts after its end.
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


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # errors of storage without hard links

_REFUSALS = {  # by errno that only a person can repair: the remedy
    errno.EROFS: "mount it writable",
    errno.EACCES: "give it to the user of the workers",
    errno.EPERM: "give it to the user of the workers",
    errno.ENOTDIR: "name a folder",
    errno.ELOOP: "name a folder",
    errno.ENAMETOOLONG: "name a shorter one",
}


class SharedDir:
    """A shared folder. All calls block. An OSError within the block of `open_folder` leaves it as LockRefused or
    LockUnreachable.

    folder: in every call below, the file descriptor of the folder that `open_folder` yields. link: os.link, or a
    storage's replacement of it.
    """

    def __init__(self, path: Path, link: Callable[..., None] = os.link) -> None:
        self.path, self.name, self._link = path, f"round folder {path}", link

    def prepare(self) -> None:
        """Create the folder if it is missing, make it private, and check that storage supports what a lock needs.

        Raises LockRefused if the parent does not exist (a missing mount must not become a folder of this host), or if
        the folder or its storage cannot be used. Raises LockUnreachable if storage fails.
        """
        with self._lock_errors():
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                pass
            except FileNotFoundError as error:
                step = "mount the shared storage, or name a folder on it"
                raise LockRefused(self.name, f"{self.path.parent} is not there", step) from error
        with self.open_folder() as folder:
            self._check_storage(folder)
            if stat.S_IMODE(os.fstat(folder).st_mode) & 0o077:
                os.fchmod(folder, 0o700)

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Yield a file descriptor of the folder for the other calls. It stays valid even if the path changes."""
        with self._lock_errors():
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield folder
            finally:
                os.close(folder)

    def read(self, folder: int, name: str) -> bytes | None:
        """Return the content of a file, cut to MAX_BYTES + 1; None if it does not exist.

        folder: its file descriptor. Raises BadRecord for a file that no member wrote (it is not a regular file, belongs
        to another user than the folder, or may not be read), and OSError if storage fails.
        """
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EACCES):  # a symbolic link, a socket, or no permission
                raise BadRecord(f"cannot be opened: {error.strerror}") from error
            raise
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.fstat(folder).st_uid:
                raise BadRecord("no file, or not of the folder's owner")
            with open(file, "rb", closefd=False) as content:
                return content.read(MAX_BYTES + 1)
        finally:
            os.close(file)

    def create_file(self, folder: int, name: str, content: bytes) -> None:
        """Create a file with this content that only this user can read, and sync it to disk.

        folder: its file descriptor. name: of the file. Raises OSError if the name exists or storage fails.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, folder: int, private: str, name: str) -> bool:
        """Link the private file to a name. Return True if the name now is that file.

        Of several members that publish a name at the same time, only one succeeds. Nobody succeeds if the name exists.
        False also if the private file was removed meanwhile. folder: file descriptor of the folder of both names.
        Raises LockRefused if storage has no hard links, and OSError if it fails otherwise.
        """
        try:
            self._link(private, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:  # also when the server linked it and its answer was lost: then it is the same file
            if not self._is_same_file(folder, private, name):
                return False
        except FileNotFoundError:  # a faster claimant has swept it away
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                why, step = f"its storage makes no hard links ({error.strerror})", "use a Lease, or other storage"
                raise LockRefused(self.name, why, step) from error
            raise
        self.sync(folder)
        return True

    def sync(self, folder: int) -> None:
        """Sync the folder, so that new names are on disk. Do nothing on storage that cannot sync folders.

        folder: its file descriptor. Raises OSError if storage fails.
        """
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
                raise

    def replace(self, folder: int, private: str, name: str) -> None:
        """Rename the private file to a name, and replace a file that has this name.

        Does nothing if the private file was removed meanwhile. folder: file descriptor of the folder of both names.
        Raises OSError if storage fails.
        """
        with suppress(FileNotFoundError):
            os.replace(private, name, src_dir_fd=folder, dst_dir_fd=folder)

    def sweep(self, folder: int, names: Iterable[str]) -> None:
        """Remove the named files from the folder. Errors are ignored. folder: its file descriptor."""
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)

    def _is_same_file(self, folder: int, name: str, other_name: str) -> bool:
        """Return True if two names in the folder are one file; False if one of them is missing.

        folder: its file descriptor.
        """
        try:
            files = [os.stat(each, dir_fd=folder, follow_symlinks=False) for each in (name, other_name)]
        except FileNotFoundError:
            return False
        return os.path.samestat(*files)

    def _check_storage(self, folder: int) -> None:
        """Test storage by writing and linking a file as a claim does. folder: its file descriptor.

        Raises LockRefused if the folder's owner is another user or storage has no hard links, and OSError if storage
        fails.
        """
        trial = f".claim-{0:010}-{secrets.token_hex(8)}"  # round 0: any successful claim sweeps it away
        try:
            self.create_file(folder, trial, b"")
            with suppress(FileNotFoundError):
                own_uid, folder_uid = (
                    os.stat(trial, dir_fd=folder, follow_symlinks=False).st_uid,
                    os.fstat(folder).st_uid,
                )
                if own_uid != folder_uid:
                    why = f"it belongs to uid {folder_uid}, and we write as uid {own_uid}"
                    step = "run all workers as one user, or name another folder"
                    raise LockRefused(self.name, why, step)
            self.publish(folder, trial, f"{trial}-linked")
        finally:
            self.sweep(folder, [trial, f"{trial}-linked"])

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

CALL_S = 5.0  # seconds for one operation on the folder

KEPT_ROUNDS = 8  # round files kept for people to read

_MAX_NUMBER = 9_999_999_999  # ten digits

_MAX_NUMBER_GAP = 1_000  # an unreadable file so far above the newest readable one is not a round file

_ROUND_FILE = re.compile(r"round-(\d{10})\.json")

_LOCK_FILE = re.compile(r"(round-|holder-|\.claim-|\.holder-)(\d{10})(?!\d)")


@dataclass(frozen=True, slots=True)
class _FolderObservation:
    """The content of the folder of round files at one moment: its newest round and that round's holder."""

    names: frozenset[str]  # of all files in the folder
    number: int = 0  # of the newest round file, 0 for none
    record: RoundRecord | None = None  # of that round, with the holder's newest budget; None for none
    holder: bytes | None = None  # the last text that its holder wrote, None for none


class RoundFiles:
    """The round files in one shared folder. All calls block, and raise LockRefused or LockUnreachable if storage fails.

    run: the id of this member's job, for the record of a round that cannot be read.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.folder, self._run, self._logged_names = SharedDir(path), run, set[str]()

    def read(self) -> _FolderObservation:
        """Read the newest round and its holder."""
        with self.folder.open_folder() as folder:
            return self._observe(folder)

    def claim(self, record: RoundRecord, after: str) -> _FolderObservation | None:
        """Publish a record as the round that follows `after`.

        after: file name of the newest round, "" for none. The record is written with the newer one of its restart
        budget and that of the same run's last round. Returns the folder's new observation. None if another candidate
        was first, a newer round exists, or `after` is so old that its file was removed. Raises LockRefused if the
        numbers are used up or the folder cannot be used, and LockUnreachable if storage fails.
        """
        number = _number_of(after) + 1
        if number > _MAX_NUMBER:
            raise LockRefused(self.folder.name, f"{after} is the last one there can be", "empty the folder")
        name, private = _round_file(number), f".claim-{number:010}-{secrets.token_hex(8)}"
        with self.folder.open_folder() as folder:
            newest = self._observe(folder)  # read again: its holder may have changed the budget since
            if newest.number == number - 1 and newest.record and newest.record.run == record.run:
                record = replace(record, budget=record.budget.newer_of(newest.record.budget))
            try:
                self.folder.create_file(folder, private, seal(record))
                if not self.folder.publish(folder, private, name):
                    return None
            finally:
                self.folder.sweep(folder, [private])
            observation = self._observe(folder)
            if (
                after and after not in observation.names
            ):  # an old claim: its number is free only because the file was swept
                self.folder.sweep(folder, [name])
                return None
            if observation.number != number:
                return None
            self.folder.sweep(folder, _obsolete_files(observation.names, number))
            return observation

    def renew(self, record: RoundRecord, number: int, beat: int) -> _FolderObservation | None:
        """Rewrite the holder's file, which shows that the holder lives.

        record: as this member claimed it; its budget may be newer. number: that in the round file's name, which may
        differ from `record.round`. beat: differs from that of the renewal before. Returns the folder's new observation;
        None if the round's file is gone or holds another grant, or if a newer round exists. Raises LockRefused if the
        folder cannot be used, LockUnreachable if storage fails.
        """
        private = f".holder-{number:010}-{secrets.token_hex(8)}"
        with self.folder.open_folder() as folder:
            if not self._is_granted(folder, number, record):
                return None
            try:
                self.folder.create_file(folder, private, seal(record, beat))
                self.folder.replace(folder, private, _holder_file(number))
            finally:
                self.folder.sweep(folder, [private])
            observation = self._observe(folder)  # after the write, which makes an NFS client drop its cached directory
            return observation if observation.number == number else None

    def _is_granted(self, folder: int, number: int, record: RoundRecord) -> bool:
        """Return True if the file of a round holds this record's grant.

        folder: its file descriptor. number: that in the round file's name. An unreadable file is logged, and gives
        False.
        """
        try:
            granted = self._read_record(folder, _round_file(number))
        except BadRecord as error:
            self._log_unreadable(_round_file(number), error)
            return False
        return granted is not None and same_grant(granted, record)

    def _observe(self, folder: int) -> _FolderObservation:
        """Read the newest valid round in the folder, and its holder. Without a valid round, return only the names.

        An unreadable file of a newer round counts as a round of an unknown holder. folder: its file descriptor.
        """
        names = frozenset(os.listdir(folder))
        numbers = sorted((int(match[1]) for name in names if (match := _ROUND_FILE.fullmatch(name))), reverse=True)
        torn, number, record = list[int](), 0, None
        for each in numbers:
            try:
                record = self._read_record(folder, _round_file(each))
            except BadRecord as error:
                self._log_unreadable(_round_file(each), error)
                torn.append(each)
            if record is not None:
                number = each
                break
        if doubtful := max((each for each in torn if each <= number + _MAX_NUMBER_GAP), default=0):
            record, number = self._record_of_unreadable(doubtful, number, record), doubtful
        if record is None:
            return _FolderObservation(names)
        return self._with_holder(folder, _FolderObservation(names, number, record))

    def _with_holder(self, folder: int, observation: _FolderObservation) -> _FolderObservation:
        """Add the text that the holder wrote last, and the restart budget and job totals in it.

        An unreadable holder's file changes nothing. folder: its file descriptor.
        """
        try:
            holder = self.folder.read(folder, _holder_file(observation.number))
            held_record = unseal(holder) if holder is not None else None
        except BadRecord:  # it does not count: the next renewal writes a whole one
            return observation
        if held_record and observation.record and same_grant(held_record, observation.record):
            budget = observation.record.budget.newer_of(held_record.budget)
            record = replace(observation.record, budget=budget, totals=held_record.totals)
            observation = replace(observation, record=record)
        return replace(observation, holder=holder)

    def _record_of_unreadable(self, number: int, before: int, record: RoundRecord | None) -> RoundRecord:
        """Make a record, without a holder's name, for round file `number`, which is unreadable.

        Another member may hold that round, so nobody may claim the next one before the usual time of silence.
        before, record: number and record of the newest readable round file; 0 and None if there is none. Its round is
        the highest that the file can have: as many above that of `record` as the file's number is above `before`. If
        `record` is None or of another run, the file's number is the round.
        """
        if record is None or record.run != self._run:
            return RoundRecord(self._run, number, "")
        return replace(record, round=max(number, record.round + number - before), coordinator="", address="", port=0)

    def _read_record(self, folder: int, name: str) -> RoundRecord | None:
        """Return the record in a round file; None if the file does not exist.

        folder: its file descriptor. name: of the file. Raises BadRecord if the file is damaged or no member wrote it,
        and OSError if storage fails.
        """
        content = self.folder.read(folder, name)
        return None if content is None else unseal(content)

    def _log_unreadable(self, name: str, error: BadRecord) -> None:
        """Log an unreadable file once."""
        if name not in self._logged_names:
            self._logged_names.add(name)
            log.warning("round_unreadable", extra={"file": str(self.folder.path / name), "why": str(error)})


class FileLock(RoundLock):
    """Gives one member access to its job's round files. All members must name the same folder."""

    kind = "round_file"

    def __init__(
        self, folder: Path, run: str, *, call_s: float = CALL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Use a folder for the rounds of the job `run`. call_s: seconds for a call; slower storage is unreachable."""
        super().__init__(run, monotonic)
        self._files, self._executor = RoundFiles(folder, run), SerialExecutor(call_s)

    @classmethod
    async def open(cls, folder: Path, run: str, *, call_s: float = CALL_S) -> FileLock:
        """Return a lock on the folder, after checking that the folder can be used.

        Raises LockRefused if only a person can make it usable, as without a parent folder or hard links, and
        LockUnreachable if storage fails otherwise, or does not answer within `call_s` seconds.
        """
        arbiter = cls(folder, run, call_s=call_s)
        await arbiter._call(arbiter._files.folder.prepare)
        return arbiter

    async def look(self) -> HeldRound:
        """Return the round of the newest file; one without a record if there is none, or if it is of another run.

        Raises LockRefused if the folder cannot be used, LockUnreachable if storage fails or does not answer.
        """
        return self._held_round(await self._call(self._files.read))

    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Create the round file that follows `after`. Return the claimed round; None if another member was first.

        None means that another member has claimed since `after` was read: call `look`. The newer one of the restart
        budgets of `record` and of the last round is written.

        Raises StaleRound if `after` has a record of the same run whose round is not lower than that of `record`.
        Raises LockRefused if the file numbers are used up or the folder cannot be used, and LockUnreachable if storage
        fails or does not answer: then the round may be claimed or not.
        """
        record = record_to_write(record, after)
        observation = await self._call(lambda: self._files.claim(record, after.token))
        return self._own_round(observation) if observation else None

    async def renew(self, held_round: HeldRound) -> HeldRound | None:
        """Rewrite the holder's file, and return the renewed round.

        None if the round is lost: a newer round exists, or this round's file is gone or holds another grant. Also None
        if `held_round` has no record. Raises LockRefused if the folder cannot be used, and LockUnreachable if storage
        fails or does not answer: then the round may be renewed or not.
        """
        record = held_round.record
        if record is None:
            return None
        number, beat = _number_of(held_round.token), next(self._beats)
        observation = await self._call(lambda: self._files.renew(record, number, beat))
        return self._own_round(observation) if observation else None

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    async def _call(self, operation: Callable[[], T]) -> T:
        """Call a function in the thread for file operations, and return its result.

        Raises the errors of the function, and LockUnreachable if it takes too long.
        """
        try:
            return await self._executor.call(operation)
        except TimeoutError as error:
            raise LockUnreachable(self._files.folder.name, f"no answer within {self._executor.limit_s:g} s") from error

    def _held_round(self, observation: _FolderObservation) -> HeldRound:
        """Return the observed round, with the time since its holder's file last changed."""
        token = _round_file(observation.number) if observation.number else ""
        return self._observe_round(observation.record, token, (observation.number, observation.holder))

    def _own_round(self, observation: _FolderObservation) -> HeldRound:
        """Return the round that this member has just written: its holder was quiet for 0 s."""
        return replace(self._held_round(observation), unrenewed_s=0.0)


def _round_file(number: int) -> str:
    """Return the name of the round file with this number, which is also the token of a claim."""
    return f"round-{number:010}.json"


def _holder_file(number: int) -> str:
    """Return the name of the file that the holder of a round rewrites. number: that in the round file's name."""
    return f"holder-{number:010}"


def _number_of(token: str) -> int:
    """Return the number in a round file's name, 0 for ""."""
    return int(token[6:16]) if token else 0


def _obsolete_files(names: frozenset[str], number: int) -> Sequence[str]:
    """List the files that nobody needs once round file `number` exists, by name. names: of all files in the folder."""
    oldest = {"round-": number - KEPT_ROUNDS + 1, "holder-": number, ".claim-": number + 1, ".holder-": number}
    matches = ((name, _LOCK_FILE.match(name)) for name in sorted(names))
    return [name for name, parts in matches if parts and int(parts[2]) < oldest[parts[1]]]
