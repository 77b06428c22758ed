"""Copies of the checkout in which mutants are tried, each with a process that forks a run of tests when asked.

What runs there is child.py. Which tests it is asked to run is known in touched.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from hack.mutants.made import Mutant
from hack.mutants.packages import Package
from hack.mutants.touched import Touched

CHILD = Path(__file__).with_name("child.py")
COMMAND = (sys.executable, "-P", str(CHILD))
LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS")
SEE_S = 1200


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return {**kept, "PYTHONHASHSEED": "0"}  # the same verdict each time


class Bench:
    """Copies of the checkout, one for each mutant that is tried at the same time."""

    def __init__(self, root: Path, folder: Path, at_once: int = 1) -> None:
        self._folder = folder
        self._copies = [folder / str(number) for number in range(at_once)]
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        for copy in self._copies:
            for name in filter(None, listed.split("\0")):
                if (root / name).exists():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(root / name, copy / name, follow_symlinks=False)  # a link to a room stays one

    def noticed(self, package: Package, mutants: Sequence[Mutant]) -> tuple[Touched, list[bool]]:
        """Tell which tests touch what, and of each mutant whether one fails, or does not end in time, with it in place.

        Raises RuntimeError if a test of the package fails without any mutant.
        """
        file = self._folder / "seen.json"
        command = [*COMMAND, "see", str(file), *package.sources, "--", *package.tests]
        done = subprocess.run(
            command, cwd=self._copies[0], env=_environment(), capture_output=True, text=True, timeout=SEE_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"the tests of {package.name} fail without any mutant:\n{done.stdout[-5000:]}")
        touched = _read(file)
        with ExitStack() as stack:
            runs: SimpleQueue[_Run] = SimpleQueue()
            for copy in self._copies:
                runs.put(stack.enter_context(_Run(copy, file)))

            def tried(mutant: Mutant) -> bool:
                if not (chosen := touched.by(mutant)):
                    return False
                run = runs.get()
                try:
                    return run.noticed(mutant, chosen, touched)
                finally:
                    runs.put(run)

            with ThreadPoolExecutor(len(self._copies)) as pool:
                return touched, list(pool.map(tried, mutants))


def _read(file: Path) -> Touched:
    seen = json.loads(file.read_text())
    lines = {
        path: {int(line): tuple(places) for line, places in by_line.items()} for path, by_line in seen["lines"].items()
    }
    return Touched(seen["seconds"], lines)


class _Run:
    """One copy and the process that runs tests in it."""

    def __init__(self, copy: Path, seen: Path) -> None:
        self._copy = copy
        self._child = subprocess.Popen(
            [*COMMAND, "try", str(seen)], cwd=copy, env=_environment(), stdin=-1, stdout=-1, text=True
        )
        # Python takes compiled code if time and length of the source fit: each text gets a time of its own.
        self._time_s = count(1)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.terminate()
        self._child.communicate()

    def noticed(self, mutant: Mutant, chosen: Sequence[str], touched: Touched) -> bool:
        """True if one of these tests fails with this mutant in place."""
        path = self._copy / mutant.path
        before = path.read_text()
        self._write(path, mutant.source)
        try:
            status = self._status(chosen, touched)
        finally:
            self._write(path, before)
        return status != 0

    def _status(self, chosen: Sequence[str], touched: Touched) -> int:
        files = sorted({test.split("::", 1)[0] for test in chosen})
        asked = {
            "files": files,
            "within_s": {test: touched.within_s(test) for test in chosen},
            "leave": sorted(set(touched.seconds).difference(chosen)),
        }
        to, answer = self._child.stdin, self._child.stdout
        if to is None or answer is None:
            raise RuntimeError("the process that runs tests has no pipes")
        print(json.dumps(asked), file=to, flush=True)
        status: int = json.loads(answer.readline())["status"]
        return status

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        os.utime(path, (next(self._time_s),) * 2)
