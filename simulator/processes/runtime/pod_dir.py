"""The folders of one pod on this machine: its volumes, hosts file, logs and shared memory. All calls block."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnout.simulator.processes.container_spec import CannotStart, Launch
from turnout.simulator.processes.volumes import File, Volume

SHARED = "/.turnout"  # where a container finds the hosts file and the kubeconfig
_FILES_ONLY = "hosts: files\n"
_MAX_TERMINATION_MESSAGE_BYTES = 4096  # as a kubelet reads of a termination message
_NO_ONE_ELSE = 0o700
_FOR_ALL = 0o644
# What a container runs lies on this machine: our code, and Python with what is installed in it.
PROGRAMS = (str(Path(__file__).resolve().parents[3]), sys.prefix, sys.base_prefix)


@dataclass(frozen=True, slots=True)
class PodFolders:
    """The folders of one pod on this machine."""

    disk: Path  # removed with the pod
    memory: Path  # on tmpfs where the machine has one

    def make(self) -> None:
        """Create the folders and the file nsswitch.conf that every pod has. Existing folders stay. Raises OSError."""
        for each in (self.disk / "root", self.shared, self.disk / "notes", self.memory / "shm"):
            each.mkdir(parents=True, exist_ok=True, mode=_NO_ONE_ELSE)
        (self.memory / "shm").chmod(0o1777)
        (self.disk / "nsswitch.conf").write_text(_FILES_ONLY)

    def remove(self) -> None:
        """Remove everything, including what its containers wrote. Errors are ignored: what cannot be removed stays."""
        for each in (self.disk, self.memory):
            shutil.rmtree(each, ignore_errors=True)

    @property
    def shared(self) -> Path:
        """The folder that containers see at /.turnout."""
        return self.disk / "shared"

    def share(self, name: str, data: bytes) -> None:
        """Write a file that all containers of the pod find at /.turnout. They see the whole new file, or the old one.

        name: of the file; all users may read "hosts", only the owner any other. data: the content. An equal file is not
        written again. Raises OSError if it cannot be written, also if make() was not called.
        """
        file = self.shared / name
        if not file.exists() or file.read_bytes() != data:
            part = file.with_suffix(".part")
            part.touch(mode=0o600)
            part.write_bytes(data)
            part.chmod(0o644 if name == "hosts" else 0o600)
            part.replace(file)

    def new_log_file(self, container: str, run: int) -> Path:
        """Return the path of the file for the output of a new run of a container, which is not created here.

        run: its number, from 0. The file of run `run` - 2 is removed. container: its name. Raises OSError if the folder
        cannot be created or that file cannot be removed.
        """
        folder = self.disk / "logs" / container
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{run - 2}.log").unlink(missing_ok=True)
        return folder / f"{run}.log"

    def new_termination_message_file(self, container: str) -> Path:
        """Create the file for the termination message of a container, or empty it, and return its path. Raises
        OSError.

        container: its name.
        """
        file = self.disk / "notes" / container
        file.write_bytes(b"")
        return file

    def termination_message(self, container: str) -> str:
        """Return the termination message that a container has written; "" for none, or if it cannot be read.

        container: its name. Only the first _MAX_TERMINATION_MESSAGE_BYTES are read; bytes that are no UTF-8 become
        U+FFFD.
        """
        try:
            with (self.disk / "notes" / container).open("rb") as file:
                return file.read(_MAX_TERMINATION_MESSAGE_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def fill(self, volumes: Iterable[Volume]) -> None:
        """Create the folders of volumes, and write their files that are new or have changed.

        A hostPath is created if its type says so. Raises CannotStart if a hostPath does not exist, and OSError if a
        folder or file cannot be written.
        """
        for volume in volumes:
            if volume.host_path:
                _check_host_path(volume)
            else:
                self._place(volume).mkdir(parents=True, exist_ok=True)
                self.write(volume.name, volume.files, volume.in_memory)

    def write(self, volume: str, files: Mapping[str, File], in_memory: bool = False) -> None:
        """Write the files of a volume whose content is new or has changed. Other files in it stay.

        Each file is replaced as a whole, but not all files at once. A changed mode alone is not applied. volume: its
        name. files: by path in it. in_memory: True if the volume is on tmpfs. Raises OSError.
        """
        base = (self.memory if in_memory else self.disk) / "volumes" / volume
        for path, file in files.items():
            target = base / path
            if target.is_file() and target.read_bytes() == file.data:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            part.write_bytes(file.data)
            part.chmod(file.mode)
            part.replace(target)

    def write_service_account(self, files: Mapping[str, bytes]) -> str:
        """Write the files of the pod's service account, and return the path of their folder. Raises OSError.

        files: name -> content.
        """
        self.write("service-account", {name: File(data, _FOR_ALL) for name, data in files.items()})
        return str(self.disk / "volumes" / "service-account")

    def binds(self, launch: Launch, volumes: Mapping[str, Volume], message_file: Path) -> list[tuple[str, str, bool]]:
        """Return what to mount into a container: (source, path in the container, read only).

        launch: its mounts and its termination message path. volumes: of the pod, by name. message_file: the file for
        the termination message. The folders of PROGRAMS stay visible if a writable volume of the pod, other than a
        hostPath, is mounted above them. A missing subPath is created in its volume. Raises CannotStart for a mount of
        an unknown volume, and OSError if a subPath cannot be created.
        """
        over: list[str] = []
        ours = [(str(self.shared), SHARED, True), (str(self.memory / "shm"), "/dev/shm", False)]
        ours.append((str(message_file), launch.termination_message_path, False))
        for mount in launch.mounts:
            volume = volumes.get(mount.volume)
            if volume is None:
                raise CannotStart(f"there is no volume {mount.volume!r}")
            source = Path(volume.host_path) if volume.host_path else self._place(volume)
            if mount.inside:
                source = source / mount.inside
                if not source.exists():
                    source.mkdir(parents=True)
            target, read_only = os.path.normpath(mount.path), mount.read_only or bool(volume.files)
            ours.append((str(source), target, read_only))
            if not volume.host_path and not read_only:
                over.append(f"{target}/")
        return ours + [(each, each, False) for each in PROGRAMS if each.startswith(tuple(over))]

    def _place(self, volume: Volume) -> Path:
        """Return the folder of a volume, on disk or in memory."""
        return (self.memory if volume.in_memory else self.disk) / "volumes" / volume.name


def _check_host_path(volume: Volume) -> None:
    """Create the hostPath of a volume as a folder if its type requires that. Raises OSError if that fails.

    Raises CannotStart if the path does not exist.
    """
    host_path = Path(volume.host_path)
    if volume.make:
        host_path.mkdir(parents=True, exist_ok=True)
    if not host_path.exists():
        raise CannotStart(f"hostPath {host_path} is not on this machine")
