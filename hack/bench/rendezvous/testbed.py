"""Runs agents on request: `python -m hack.bench.rendezvous.testbed NAMES KIND...`.

It reads lines "kind agents limit_s [dies]" and answers each with the meeting as JSON. What its kinds need is imported
once; the meetings are forked from it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from hack.bench.rendezvous import mount_namespace
from hack.bench.rendezvous.agents import RendezvousKind, WorldTimes, gather
from hack.bench.rendezvous.lower_bound import AddressLookup, LowerBound
from hack.bench.rendezvous.mount_namespace import NameSource
from hack.bench.rendezvous.ours import TurnoutRendezvous
from hack.bench.rendezvous.stores import C10d, Connections, Nvrx

KINDS: Mapping[str, RendezvousKind] = {
    "ours": TurnoutRendezvous(),
    "floor": LowerBound(),
    "lookup": AddressLookup(),
    "nvrx": Nvrx(),
    "c10d": C10d(),
    "stores": Connections(),
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Testbed:
    """The caller's end of a process of this module. names: how names are looked up there. path: for PYTHONPATH."""

    def __init__(self, kinds: Sequence[str], names: NameSource, folder: Path, path: Sequence[Path] = ()) -> None:
        self._err = (folder / "stage.err").open("ab")
        words = [sys.executable, "-m", "hack.bench.rendezvous.testbed", names.value, *kinds]
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([os.getcwd(), *map(str, path)])}
        pipe = subprocess.PIPE
        command = mount_namespace.command(words, names, folder)
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._err, text=True, env=env)

    def meet(self, kind: str, agents: int, limit_s: float, *, one_dies: bool = False) -> WorldTimes:
        """Run one rendezvous in the testbed's process and return its times. Arguments as of `agents.gather`.

        kind: by name, one of `kinds`. If the process ends, the result says so in `why`.
        """
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(f"{kind} {agents} {limit_s}{' dies' if one_dies else ''}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return WorldTimes(agents, why="its process ended")
        line = self._process.stdout.readline()
        return WorldTimes(**json.loads(line)) if line else WorldTimes(agents, why="its process ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the testbed's process, which has no children between two meetings."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._err.close()


def main(argv: Sequence[str]) -> int:
    """Import what the kinds in `argv` need, then run a rendezvous for each line on stdin until it ends. Return 0."""
    names, *kinds = argv
    opened = mount_namespace.bring_up_loopback(NameSource(names))
    for kind in kinds:
        KINDS[kind].warm()
    gc.collect()
    gc.freeze()  # what was imported stays as it is in every fork
    for line in sys.stdin:
        kind, agents, limit_s, *dies = line.split()
        met = gather(KINDS[kind], int(agents), float(limit_s), one_dies=bool(dies))
        print(json.dumps(asdict(met)), flush=True)
    if opened:
        opened.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
