"""The share of jobs lost after a kill, of split worlds, and the restarts that a fault costs.

Each trial is a job of three real agents on one machine, their rounds granted by files in a shared folder, and one
death. Two jobs run at a time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from turnout.cli.commands.extender_process import free_port

TRAIN_SCRIPT = Path(__file__).with_name("survival_script.py")
AT_ONCE = 2
AGENTS = 3
LIMIT_S = 30.0
_LOOK = threading.Event()


class Death(Enum):
    """The process that is killed, and when."""

    COORDINATOR_IN_TRAINING = "coordinator killed in training"
    COORDINATOR_IN_JOIN = "coordinator killed in join"
    PROCESS = "training process killed"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one job. back_s: from the death until the next world had begun; charged: restarts."""

    finished: bool
    split: bool
    charged: int
    back_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Life:
    """A training process, as it recorded itself."""

    round: int
    rank: int
    size: int
    pid: int
    restarts: int
    began_s: float
    alive_s: float


COLUMNS = {"what happens": "", "jobs": "d", "lost": "d", "split": "d", "restarts charged": "", "back median s": ".2f"}
COLUMNS |= {"worst s": ".2f"}


def measure(scale: Scale) -> Outcome:
    """Run each kind of death several times."""
    times = scale.pick(200, 5, 1)
    found = {death: _trials(death, times) for death in Death}
    coordinators = [*found[Death.COORDINATOR_IN_TRAINING], *found[Death.COORDINATOR_IN_JOIN]]
    every = [each for some in found.values() for each in some]
    once = sum(each.charged == 1 and each.finished for each in found[Death.PROCESS])
    faults = [each.why.splitlines()[0] for each in every if not each.finished]
    rows = [(death.value, *_row(some)) for death, some in found.items()]
    return Outcome(
        "survival",
        [Table(f"jobs of three agents, {times} of each kind", COLUMNS, rows)],
        [
            Target("jobs lost when the coordinator dies", sum(not each.finished for each in coordinators), "<=", 0),
            Target("worlds split", sum(each.split for each in every), "<=", 0),
            Target("faults that cost exactly one restart, of all", once / times, ">=", 1),
        ],
        [f"A job that is not done {LIMIT_S:g} s after it should be counts as lost.", *faults[:5]],
    )


def _row(some: Sequence[Result]) -> tuple[object, ...]:
    lost, split_ = sum(not each.finished for each in some), sum(each.split for each in some)
    back_s, charged = [each.back_s for each in some], [each.charged for each in some]
    spread = f"{min(charged)}..{max(charged)}"
    return len(some), lost, split_, spread, statistics.median(back_s), max(back_s)


def _trials(death: Death, times: int) -> list[Result]:
    def one(_: int) -> Result:
        with tempfile.TemporaryDirectory(prefix="turnout-trial-") as folder:
            (Path(folder) / "rounds").mkdir()
            return trial(death, Path(folder))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(times)))


def trial(death: Death, folder: Path) -> Result:
    """Start a job in this folder, let it suffer this death, and see it to its end. Leaves no process."""
    port = free_port()
    agents: list[subprocess.Popen[bytes]] = []
    try:
        return _run(death, folder, port, agents)
    except TimeoutError as error:
        logs = "\n".join(file.read_text(errors="replace") for file in sorted(folder.glob("*.log")))
        return Result(False, split(lives(folder)), -1, LIMIT_S, f"{error}\n{logs}")
    finally:
        for agent in agents:
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def _run(death: Death, folder: Path, port: int, agents: list[subprocess.Popen[bytes]]) -> Result:
    agents.append(_agent(folder, port, 0))
    _until(lambda: _told(folder, 0, "coordinator_begun"), "a coordinator")
    if death is Death.COORDINATOR_IN_JOIN:
        agents.append(_agent(folder, port, 1))
        _until(lambda: _told(folder, 1, "coordinator_found"), "a second member")
        agents.append(_agent(folder, port, 2))
    else:
        agents += [_agent(folder, port, at) for at in range(1, AGENTS)]
        _until(lambda: _whole(folder, 0, AGENTS), "a world of three")
    died_s = time.monotonic()
    before = max((life.round for life in lives(folder)), default=0)
    if death is Death.PROCESS:
        os.kill(next(life.pid for life in lives(folder) if life.rank == 1), signal.SIGKILL)
    else:
        agents[0].kill()
    left = AGENTS if death is Death.PROCESS else AGENTS - 1
    _until(lambda: _whole(folder, before, left), f"a world of {left}")
    back_s = min(life.began_s for life in lives(folder) if life.round > before) - died_s
    (folder / "finish").touch()
    living = agents if death is Death.PROCESS else agents[1:]
    _until(lambda: all(agent.poll() is not None for agent in living), "an end")
    codes = [agent.returncode for agent in living]
    charged = max(life.restarts for life in lives(folder))
    return Result(codes == [0] * len(living), split(lives(folder)), charged, back_s, f"exit codes {codes}")


def _agent(folder: Path, port: int, number: int) -> subprocess.Popen[bytes]:
    command = [
        *(
            sys.executable,
            "-m",
            "turnout.launcher",
            "--log-format=json",
            "--no-fork",
            f"--name=w{number}",
            "--rdzv-id=trial",
        ),
        *(f"--nnodes=2:{AGENTS}", "--max-restarts=3", f"--rdzv-endpoint=127.0.0.1:{port}", "--last-call-s=1.5"),
        *(f"--round-dir={folder / 'rounds'}", "--heartbeat-s=0.2", "--silence-s=2", str(TRAIN_SCRIPT), str(folder)),
    ]
    with (folder / f"w{number}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _told(folder: Path, number: int, event: str) -> bool:
    lines = (folder / f"w{number}.log").read_text(errors="replace").splitlines()
    return any(json.loads(line)["event"] == event for line in lines if line.startswith("{") and line.endswith("}"))


def lives(folder: Path) -> list[Life]:
    """Read all training processes that there were."""
    found = []
    for file in folder.glob("life-*-*-*"):
        words = [] if file.suffix else file.read_text().split()
        if len(words) == 7:
            found.append(Life(*map(int, words[:5]), *map(float, words[5:])))
    return found


def _whole(folder: Path, after: int, size: int) -> bool:
    rounds: defaultdict[int, set[int]] = defaultdict(set)
    for life in lives(folder):
        if life.round > after and life.size == size:
            rounds[life.round].add(life.rank)
    return any(len(ranks) == size for ranks in rounds.values())


def split(lived: Sequence[Life]) -> bool:
    """True if two rounds ever had all of their processes alive at the same moment."""
    rounds: defaultdict[int, list[Life]] = defaultdict(list)
    for life in lived:
        rounds[life.round].append(life)
    spans = sorted(
        (max(life.began_s for life in each), min(life.alive_s for life in each))
        for each in rounds.values()
        if len({life.rank for life in each}) == each[0].size
    )
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def _until(look: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not look():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what} did not come within {LIMIT_S:g} s")
        _LOOK.wait(0.01)
