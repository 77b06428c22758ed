"""Time runs on Spark, each beside a run of local processes over the same text.

`python -m hack.bench.preprocess.spark_script TEXT VOCABULARY FOLDER ROUNDS` prints a JSON object: `start_s`, seconds
until Spark's session and its Python workers are there; `rounds`, a list of [tokens/s on Spark, tokens/s of the local
runner]. A session is started once for all rounds. The local runner's seconds include the start of its processes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hack.bench.preprocess.sides import WORKERS
from turnout.preprocess.local_runner import run_local
from turnout.preprocess.options import Engine, Options, TokenizerType
from turnout.preprocess.run import Totals
from turnout.preprocess.spark_runner import run_spark, session


def main(text: str, vocabulary: str, folder: str, rounds: str) -> None:
    """Start Spark, then make the same dataset on Spark and by local processes by turns."""
    options = Options(
        inputs=(text,),
        output_prefix=f"{folder}/out",
        tokenizer_type=TokenizerType.HF,
        vocab_file=vocabulary,
        append_eod=True,
        workers=WORKERS,
        engine=Engine.GIGATOKEN,
        log_interval=10_000_000,
    )
    short = Path(folder) / "short.jsonl"
    short.write_text('{"text": "One short document."}\n')
    began_s = time.monotonic()
    with session(f"local[{WORKERS}]") as spark:
        tokens_per_s(replace(options, inputs=(str(short),)), spark)
        start_s = time.monotonic() - began_s
        found = [(tokens_per_s(options, spark), tokens_per_s(options, None)) for _ in range(int(rounds))]
    print(json.dumps({"start_s": start_s, "rounds": found}))


def tokens_per_s(options: Options, spark: Any) -> float:
    """Return the rate of a whole run, which leaves nothing behind. spark: a SparkSession, None for local processes."""
    began_s = time.monotonic()
    totals = run_local(options) if spark is None else run_spark(options, lambda: contextlib.nullcontext(spark))
    seconds = time.monotonic() - began_s
    assert isinstance(totals, Totals)
    for path in Path(options.output_prefix).parent.glob(f"{Path(options.output_prefix).name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return totals.tokens / seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
