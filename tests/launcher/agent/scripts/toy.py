"""The training script of these tests: it notes that it runs, until it is told to finish or to do something else.

Without torch, so that it starts in an instant. Arguments: the crew's folder, then words: `fail` ends with 1, `stubborn`
does not heed SIGTERM, `steps` counts steps and stops where all stop, `hook` saves on SIGTERM as a user's own
code does. With `steps`, `saves` also saves every tenth step up to step 50.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

folder, words = Path(sys.argv[1]), sys.argv[2:]
name, round_, rank = os.environ["CREW_NAME"], int(os.environ["TURNOUT_ROUND"]), int(os.environ["RANK"])
note = folder / "lives" / f"{name}-{round_}-{rank}-{os.getpid()}"
alive = os.open(note.with_suffix(".alive"), os.O_WRONLY | os.O_CREAT, 0o600)


def live():
    os.pwrite(alive, b"%020.6f" % time.monotonic(), 0)


def begin():
    now_s = time.monotonic()
    live()
    environment = (
        "MASTER_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "NODE_", "ROLE_", "WORKER_", "WORLD_SIZE", "RANK", "TURNOUT_",
        "pid_namespace",
    )  # fmt: skip
    record = {
        "name": name, "round": round_, "rank": rank, "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid(),
        "began_s": now_s, "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "env": {key: value for key, value in os.environ.items() if key.startswith(environment)},
    }  # fmt: skip
    part = note.with_suffix(".part")
    part.write_text(json.dumps(record))
    part.rename(note.with_suffix(".json"))


def log(file, **fields):
    with (folder / file).open("a") as out:
        out.write(json.dumps(fields) + "\n")


def saved():
    try:
        return int((folder / "saved").read_text() or -1)
    except FileNotFoundError:
        return -1


def save(step):
    part = folder / f"saved.{rank}"
    part.write_text(str(step))
    part.rename(folder / "saved")


def count():
    """A training loop with the three lines of Steps. Rank 0 saves; each rank logs each step that it has done."""
    from turnout.launcher.elastic.steps import Steps

    steps = Steps()
    for step in steps.count(saved() + 1):
        live()
        time.sleep(0.005 * (1 + rank))  # ranks are not equally fast
        log("steps", round=round_, rank=rank, step=step)
        if "saves" in words and rank == 0 and step and step % 10 == 0 and step <= 50:
            with steps.phase("saving"):
                save(step)
                time.sleep(0.02)
            steps.saved(step)
        if steps.done(step):
            if rank == 0:
                save(step)
            steps.saved(step)
            log("stops", round=round_, rank=rank, step=step)
            return
        if (folder / "finish").exists():
            live()
            return


def hook(number, frame):
    log("hooks", round=round_, rank=rank, signal=number, name=name)
    sys.exit(0)


if "stubborn" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "hook" in words:
    signal.signal(signal.SIGTERM, hook)
begin()
if "fail" in words:
    sys.exit(1)
if "steps" in words:
    count()
    sys.exit(0)
while not (folder / "finish").exists():
    live()
    time.sleep(0.01)
live()
