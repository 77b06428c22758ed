"""The processes of a pod, as this machine numbers them: found by a variable that all of them have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.chaos.testbed.manifests import MARK


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a pod."""

    pid: int  # on this machine
    inner: int  # in its container, where 1 is the agent; 0 if unknown
    home: str  # the UID of its pod


def of_pods() -> Iterator[Process]:
    """Yield every process of this machine that runs in a pod of such a job, also of other test runs."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            status = (folder / "status").read_text()
        except OSError:  # it has ended meanwhile, or is not ours to see
            continue
        home = next((each for each in environ if each.startswith(MARK.encode() + b"=")), b"").partition(b"=")[2]
        inner = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")), "0")
        if home:
            yield Process(int(folder.name), int(inner), home.decode())
