"""Kill a run at each of its writes in turn, resume it, compare. Arguments: a folder and a seed.

Each run is a forked child. An audit hook counts what the interpreter is about to do to files: open one for writing,
rename or remove one, make or remove a folder. At its number the child ends at once, as by SIGKILL, half-written files
and all. The next child, which may be killed too, goes on.

A tokenizer starts threads, and a fork of a process with threads may crash. So this process has one thread: whatever
needs a tokenizer, the vocabulary and the tokens to compare with too, is done in a child.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.preprocess import corpus
from turnout.preprocess.options import Engine, OnError

WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate")
FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED = 9


def in_child(work: Callable[[], bytes]) -> bytes | None:
    """Return what the work returns in a forked child, or None if the child ended itself with the code KILLED."""
    assert len(os.listdir("/proc/self/task")) == threading.active_count() == 1, "a process with threads cannot fork"
    reader, writer = os.pipe()
    if (number := os.fork()) == 0:
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(work())
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(number, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"a run failed with {code}"
    return None if code == KILLED else answer


def run(options, kill_at: int | None) -> int | None:
    """Run in a child that ends at its kill_at-th write. Return how many writes it came to, or None if it was killed."""

    def work() -> bytes:
        count = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal count
            if event in WRITES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & FLAGS):
                count += 1
                if count == kill_at:
                    os._exit(KILLED)

        sys.addaudithook(hook)
        corpus.run(options)
        return b"%d" % count

    count = in_child(work)
    return None if count is None else int(count)


def look(folder: Path) -> dict[str, bytes]:
    """Return what the run left. Whatever stands under an output's name has to be whole already."""
    return {path.name: path.read_bytes() for path in folder.glob("out*") if path.is_file()}


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)
    documents = [*corpus.texts(chance.randint(10, 20), seed), " ".join(corpus.texts(30, seed))]
    raw = corpus.lines(documents) + b'{"broken\n'
    (folder / "a.jsonl").write_bytes(raw)
    (folder / "b.jsonl.gz").write_bytes(corpus.gz(corpus.lines(documents[:9])))
    (folder / corpus.VOCABULARY).write_bytes(in_child(lambda: corpus.tokenizer_json().encode()))
    options = corpus.options(
        folder,
        "a.jsonl",
        "b.jsonl.gz",
        chunk_bytes=chance.randint(900, 2500),
        engine=Engine.GIGATOKEN,
        on_error=OnError.QUARANTINE,
    )
    points = run(options, None)
    files_before = look(folder)
    assert files_before["out_text_document.bin"] == in_child(lambda: corpus.reference([*documents, *documents[:9]])[0])
    killed = set()
    for point in range(1, points + 1):
        for name in files_before:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "out.shards", ignore_errors=True)
        kill_at: int | None = point
        while run(options, kill_at) is None:
            killed.add(kill_at)
            for name, content in look(folder).items():
                assert content == files_before[name], f"{name} is torn after a kill at write {point}"
            # The run that goes on is killed as well, now and then.
            kill_at = chance.randint(1, points) if chance.random() < 0.3 else None
        assert look(folder) == files_before, f"another output after a kill at write {point}"
        assert not (folder / "out.shards").exists()
    print(points, len(killed))


if __name__ == "__main__":
    main()
