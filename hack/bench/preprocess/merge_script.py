"""Merge the shards of a run several times, each time beside `cp` of the same files.

`python -m hack.bench.preprocess.merge_script TEXT VOCABULARY FOLDER ROUNDS` prints a JSON list of [bytes, seconds of
the merge, seconds of cp]. Both end when the bytes are on the disk: the merge calls fsync, and so does
`sync` for the copies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from hack.bench.preprocess.sides import WORKERS
from turnout.preprocess.local_runner import make_shards
from turnout.preprocess.merge import complete_documents, dataset_path, merge_key
from turnout.preprocess.options import Engine, Options, TokenizerFiles, TokenizerType
from turnout.preprocess.run import PreprocessRun, prepare_run
from turnout.preprocess.shards import tokens_path


def main(text: str, vocabulary: str, folder: str, rounds: str) -> None:
    """Tokenize the text once, then merge and copy its shards in turns. Print [bytes, seconds of the merge, seconds of
    `cp`] for each round as a JSON list.

    text: path of the JSON lines. vocabulary: path of tokenizer.json. folder: for all output; it has to exist. rounds:
    their number.
    """
    options = Options(
        inputs=(text,),
        output_prefix=f"{folder}/merged",
        tokenizer=TokenizerFiles(TokenizerType.HF, vocabulary),
        append_eod=True,
        workers=WORKERS,
        engine=Engine.GIGATOKEN,
    )
    found = []
    with prepare_run(options) as run:
        assert isinstance(run, PreprocessRun)
        records = {record.index: record for record in make_shards(run, lambda line: None)}
        shards = complete_documents([(chunk, records[chunk.index]) for chunk in run.plan.chunks])
        files = [tokens_path(run.settings.folder, chunk.index, 0) for chunk, _ in shards]
        for at in range(int(rounds)):
            copied, began_s = Path(folder) / f"copy-{at}", time.monotonic()
            copied.mkdir()
            subprocess.run(["cp", *files, str(copied)], check=True)
            subprocess.run(["sync", *(str(path) for path in copied.iterdir())], check=True)
            copy_s, began_s = time.monotonic() - began_s, time.monotonic()
            merge_key(
                f"{folder}/merged-{at}", run.settings.folder, 0, "text", run.settings.tokenizer.vocabulary_size, shards
            )
            merge_s = time.monotonic() - began_s
            found.append((sum(os.path.getsize(file) for file in files), merge_s, copy_s))
            shutil.rmtree(copied)
            for suffix in ("bin", "idx"):
                os.unlink(dataset_path(f"{folder}/merged-{at}", "text", suffix))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
