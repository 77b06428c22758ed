"""Run as the first process of a container: isolate it, run its command, and end when the command has ended.

This is a process of its own (python -I -S container_init.py): standard library only, one thread. It reads one JSON line
on stdin (`ContainerOrder` of pod_worker.py) and then watches stdin. When stdin closes, the parent is gone, and
everything in the container ends. SIGTERM is passed on to the command. SIGUSR1 means: kill everything now.

Isolation means namespaces of mounts, host name and processes, where the kernel allows them: as root, or
through a user namespace. Without them a container has no volumes and cannot find peers by name; it reports that.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

NEWNS, NEWUTS, NEWUSER, NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 128  # as containerd has it for a command that cannot be run
_libc = ctypes.CDLL(None, use_errno=True)
Order = dict[str, Any]


def main() -> NoReturn:
    """Carry out the order on stdin. Exit with the code of the command, or 128 + n if signal n ended it.

    Exit with NOT_STARTED if the command cannot be run, or lacks an isolation that it needs. Without a command in the
    order, wait for a signal or the end of stdin, and exit with 0; with 137 if the signal is not SIGTERM.
    """
    order: Order = json.loads(_read_order_line())
    isolated = order["isolated"] and _enter_namespaces()  # before the signals: it may start a child, which ends
    signal_pipe, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda received, _: signals.append(received))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if order["needs_isolation"] and not isolated:
        _not_started(order, "a container with volumes needs mount namespaces, which this machine does not allow")
    if not order["argv"]:  # only its image would know: it stays until it is told to go
        _wait_for_the_end(signal_pipe, signals)
    child = os.fork()
    if not child:
        _run_command(order, isolated)
    os._exit(_wait_for_command(child, signal_pipe, signals))


def can_isolate() -> bool:
    """Return True if the kernel lets this process enter the namespaces of a container. A short-lived child tries it."""
    return _works_in_child(_enter_namespaces)


def _read_order_line() -> bytes:
    """Return the first line of stdin, with its newline. The process exits with NOT_STARTED if stdin ends before it.

    The parent must write nothing after the line, because that could be returned, too.
    """
    read = bytearray()
    while not read.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(NOT_STARTED)
        read += chunk
    return bytes(read)


def _wait_for_the_end(signal_pipe: int, signals: list[int]) -> NoReturn:
    """Wait for SIGTERM, SIGUSR1 or the end of the parent process, then exit.

    Exit with 0 for SIGTERM and for the end of stdin, else with 137. signal_pipe: becomes readable with a signal.
    signals: the received ones, filled by the handlers.
    """
    while not signals:
        if 0 in select.select([0, signal_pipe], [], [])[0]:
            os._exit(0)
    os._exit(0 if signal.SIGTERM in signals else 128 + signal.SIGKILL)


def _wait_for_command(child: int, signal_pipe: int, signals: list[int]) -> int:
    """Wait until the command has ended, then kill the processes that it left, and return its exit code.

    The code is 128 + n if signal n ended the command. SIGTERM is passed on, any other signal but SIGCHLD kills the
    command, and so does the end of stdin. child: the process id of the command. signal_pipe: becomes readable with a
    signal. signals: the received ones, filled by the handlers; the list is emptied.
    """
    watched, code = [0, signal_pipe], None
    while code is None:
        ready = select.select(watched, [], [])[0]
        if signal_pipe in ready:
            os.read(signal_pipe, 4096)
        if 0 in ready:  # the parent is gone
            watched = [signal_pipe]
            os.kill(child, signal.SIGKILL)
        while signals:
            number = signals.pop(0)
            if number != signal.SIGCHLD:
                os.kill(child, signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL)
        code = _reap(child)
    _kill_orphans()
    return code


def _reap(child: int) -> int | None:
    """Collect children that have ended.

    Return the command's exit code, 128 + n for signal n, if it is among them; NOT_STARTED if there is no child at all;
    else None. Once the command is found, further ended children are left to the next call. child: the process id of the
    command.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return NOT_STARTED
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        if pid == 0:
            return None


def _kill_orphans() -> None:
    """Kill the processes that the command left, which are children of this process now, and wait for their ends.

    With namespaces there are none: the kernel has ended them already.
    """
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            left = [int(word) for word in file.read().split()]
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# Isolation.


def _enter_namespaces() -> bool:
    """Enter new mount and host-name namespaces, and a process namespace for later children. Return True if that worked.

    A user namespace is used if they need one. False: the kernel refuses them, and nothing has changed. A child may be
    started and waited for.
    """
    if _libc.unshare(NEWNS | NEWUTS | NEWPID) == 0:
        return True
    if ctypes.get_errno() not in (errno.EPERM, errno.EINVAL, errno.ENOSPC):
        return False
    # It cannot be left again, and some systems (AppArmor on Ubuntu 24.04) make one that its user may do nothing in.
    return _works_in_child(_enter_user_namespace) and _enter_user_namespace()


def _enter_user_namespace() -> bool:
    """Enter the same namespaces within a new user namespace, in which this user keeps its id and may mount.

    Return False if the kernel makes no such namespace. Raises OSError, within the new namespaces, if this user cannot
    be mapped into them, or may not mount there.
    """
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(NEWNS | NEWUTS | NEWPID | NEWUSER) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)
    return True


def _works_in_child(attempt: Callable[[], bool]) -> bool:
    """Return True if `attempt` returns True in a short-lived child process; False also if it raises OSError there."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if attempt() else 1)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _run_command(order: Order, isolated: bool) -> NoReturn:
    """Complete the isolation in the child process, then replace it by the command. A failure ends the process with
    NOT_STARTED.

    isolated: True if it is in namespaces of its own.
    """
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if isolated:
            Root(order["root"], order["links"]).build(order["binds"])
            os.chroot(order["root"])
            name = order["hostname"].encode()
            _check(_libc.sethostname(name, len(name)), "sethostname")
        os.chdir(order["working_dir"] or "/")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except (OSError, ValueError) as error:
        _not_started(order, f"{order['argv'][0]}: {error}")


def _not_started(order: Order, why: str) -> NoReturn:
    """Write why the container cannot be started to its log and termination message, and exit with NOT_STARTED."""
    print(f"turnout: this container cannot be started: {why}", file=sys.stderr, flush=True)
    try:
        with open(order["termination_message_file"], "a") as file:
            file.write(why)
    finally:
        os._exit(NOT_STARTED)


class Root:
    """The files that a container sees: those of this machine, with its volumes mounted at the paths of its mounts.

    A folder that must hold something new is replaced by a tmpfs with everything that the folder holds. So nothing is
    ever created in a folder of this machine.
    """

    def __init__(self, root: str, links: dict[str, str]) -> None:
        self.root, self.links = root, links
        self.ours: set[str] = set()  # folders in which things may be made

    def build(self, binds: list[tuple[str, str, bool]]) -> None:
        """Mount everything that the container sees, below the folder `root`.

        Raises OSError; a failed mount of /proc is ignored. binds: (source on this machine, path in the container, read
        only).
        """
        _mount("none", "/", flags=MS_REC | MS_PRIVATE)
        self._make_extensible("/")
        for link in self.links:
            self._place_for(os.path.dirname(link))
            self._make_extensible(os.path.dirname(link))
        mounts = [
            (source, os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target)), read_only)
            for source, target, read_only in sorted(binds, key=lambda bind: bind[1].count("/"))
        ]
        for source, target, _ in mounts:  # all folders first: one that is opened up later would hide what lies in it
            self._place_for(target, is_file=not os.path.isdir(source))
        for source, target, read_only in mounts:
            self._bind(source, target, read_only)
        proc = f"{self.root}/proc"
        if _libc.mount(b"proc", proc.encode(), b"proc", 0, None) != 0:
            pass  # /proc may be masked by an outer container: ours then shows the processes outside

    def _bind(self, source: str, target: str, read_only: bool) -> None:
        """Mount a file or folder of the host at a path of the container, which is created if it is missing.

        Raises OSError if the path cannot be created, or the kernel refuses a mount. source: the path on this machine.
        target: the path in the container. read_only: True to forbid writes.
        """
        place = self._place_for(target, is_file=not os.path.isdir(source))
        _mount(source, place, flags=MS_BIND | MS_REC)
        if read_only:
            _mount("none", place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
        self.ours.add(target)

    def _place_for(self, target: str, is_file: bool = False) -> str:
        """Return the path on this machine of a folder or file to mount over. It is created if it is missing.

        target: the path in the container. is_file: create a file, not a folder. Raises OSError if it cannot be created.
        """
        place = self.root + target
        if os.path.exists(place):
            return place
        above = os.path.dirname(target)
        if not os.path.exists(self.root + above):
            self._place_for(above)
        if not self._is_ours(above):
            self._make_extensible(above)
        if is_file:
            os.close(os.open(place, os.O_CREAT, 0o644))
        else:
            os.mkdir(place, 0o755)
            self.ours.add(target)
        return place

    def _is_ours(self, folder: str) -> bool:
        """Return True if a folder is one that this root has created, or lies in one."""
        return any(folder == each or folder.startswith(f"{each}/") for each in self.ours - {"/"}) or folder in self.ours

    def _make_extensible(self, folder: str) -> None:
        """Replace a folder by a tmpfs with mounts of its entries, so that entries can be added without writing to this
        machine.
        """
        if folder in self.ours:
            return
        place = self.root + folder.rstrip("/")
        _mount("tmpfs", place, "tmpfs", data="mode=755")
        self.ours.add(folder)
        for entry in os.scandir(folder):
            target = f"{place}/{entry.name}"
            if (link := self.links.get(os.path.join(folder, entry.name))) is not None:
                os.symlink(link, target)
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            else:
                if entry.is_dir():
                    os.mkdir(target)
                else:
                    os.close(os.open(target, os.O_CREAT, 0o644))
                _mount(entry.path, target, flags=MS_BIND | MS_REC)


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount by the system call. Raises OSError if the kernel refuses it.

    source, target: paths on this machine; for a tmpfs, and to change flags, the kernel ignores the source. kind: of
    file system, such as "tmpfs"; "" for a bind mount or changed flags. flags: MS_*. data: options of the file system.
    """
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _check(result, f"mount {source} at {target}")


def _check(result: int, action: str) -> None:
    """Raise OSError with the errno of the last system call if it has failed. result: of the call. action: for the
    message.
    """
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
