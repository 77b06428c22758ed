"""One import of a large library for several processes: each is forked, tells a line of JSON, and has its own memory."""

import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo  # seconds, that each first optimizer would take


def fork(home, name, run, memory="", *, dies=False):
    """Run it in a process of its own to its end; tell what it gives, or which signal ended it.

    memory: the name of another one's, whose memory it goes on with. dies: in the end, so that its memory stays.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.environ["TURNOUT_MEMORY_DIR"] = str(folder(home, f"memory-{memory or name}"))
        code = 1
        try:
            _tell({"name": name} | run())
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            _ends(code)
    _, status = os.waitpid(child, 0)
    if status and not dies:
        _tell({"name": name, "ended": os.waitstatus_to_exitcode(status)})


def world(home, name, ranks, run, memory="", *, dies=False):
    """So many processes beside one another, as ranks of torch.distributed; those after the first end in -1, -2, ..."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(found.getsockname()[1]), WORLD_SIZE=str(ranks))
    others = []
    for rank in reversed(range(ranks)):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        if not rank:
            fork(home, name, run, memory, dies=dies)
        elif child := os.fork():
            others.append(child)
        else:
            fork(home, f"{name}-{rank}", run, memory, dies=dies)
            os._exit(0)
    for each in others:
        os.waitpid(each, 0)


def _tell(line):
    """In one piece: two ranks may tell at once."""
    os.write(1, json.dumps(line).encode() + b"\n")


def _ends(code):
    from turnout.launcher.checkpoint.dcp.reader import memories

    memories.close()
    sys.stderr.flush()
    os._exit(code)


def folder(home, name):
    path = Path(home, name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def example(shown, word, **names):
    """Run the block of docs/checkpoints.md that has this word; gives what its names are then. shown: the test's own."""
    (text,) = [each.text for each in shown if word in each.text]
    exec(text, names)
    return names


def digest(value):
    """Give a digest of every bit of a state."""
    total = hashlib.sha256()
    _add(total, value)
    return total.hexdigest()


def _add(total, value):
    if isinstance(value, torch.Tensor):
        flat = value.detach().clone().reshape(-1)
        total.update(f"{value.dtype}{tuple(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            total.update(repr(key).encode())
            _add(total, value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            _add(total, each)
    else:
        total.update(repr(value).encode())
