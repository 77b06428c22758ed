"""The guide's script under real Spark with Java: its command line, partitions, lost executors, ended runs, faults."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hack.lint.code_blocks import run_by
from tests.preprocess.corpus import lines, options, output, reference, ten_lines, texts, tokenizer_json, zst
from turnout.preprocess import pyspark_preprocess
from turnout.preprocess.options import Options
from turnout.preprocess.run import shards_folder

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.debian("default-jre-headless")]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(pyspark_preprocess.__file__)
TEXTS = texts(400, seed=11)
BIN = Path(sys.executable).parent
BAD_LINE = b'{"text": 5}\n'


@contextmanager
def submitted(folder, script, *arguments, master="local[2]", settings=()):
    """A spark-submit in a session of its own, which ends with the block. Its Python is not the one on PATH."""
    command = [BIN / "spark-submit", "--executor-cores=2", "--num-executors=2", "--master", master]
    command += [*(word for setting in settings for word in ("--conf", setting)), script, *arguments]
    env = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    env |= {"PYSPARK_PYTHON": sys.executable, "HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_WORKER_DIR": str(folder / "executors"), "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w+") as log:
        running = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield running
        finally:
            end(running)


def end(running):
    """Kill a spark-submit with everything that it started."""
    for process in processes_of(running):
        process.kill()
    running.wait(30)


class Process:
    """A process of this machine."""

    def __init__(self, number):
        self.number = number

    @property
    def command(self):
        return Path(f"/proc/{self.number}/cmdline").read_bytes().decode(errors="replace")

    def kill(self):
        os.kill(self.number, signal.SIGKILL)


def processes_of(running):
    """The processes of a spark-submit's session."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [Process(number) for number in numbers if session_of(number) == running.pid]


def session_of(number):
    try:
        return os.getsid(number)
    except ProcessLookupError:
        return None


def submit(folder, script, *arguments, status=0, **how):
    """Run a spark-submit to its end, and return what it printed."""
    with submitted(folder, script, *arguments, **how) as running:
        running.wait(200)
    printed = (folder / "log").read_text()
    assert running.returncode == status, printed
    return printed


def wait_for_shards(of, count, running):
    """Wait until so many shards of a run are finished."""
    shards = Path(shards_folder(of.output_prefix))
    until = time.monotonic() + 100
    while len(list(shards.glob("[0-9]*.json"))) < count:
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)


def arguments(of: Options):
    """The command line of these options."""
    return [
        *("--input", ",".join(of.inputs), "--output-prefix", of.output_prefix),
        *("--tokenizer-type", of.tokenizer.kind.value, "--vocab-file", of.tokenizer.vocab_file, "--append-eod"),
        *("--chunk-bytes", str(of.limits.chunk_bytes), "--partitions", str(of.partitions)),
    ]


MEGATRON = """
import json
from megatron.core.datasets.indexed_dataset import IndexedDataset
dataset = IndexedDataset("result_text_document")
print(json.dumps([len(dataset), len(dataset.document_indices), dataset[3].tolist()]))
"""


@pytest.mark.contract("DL-67", "DL-79")
def test_the_guides_command_line_gives_what_ten_lines_give(tmp_path):
    model = json.loads(tokenizer_json())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (tmp_path / "mydataset.jsonl").write_bytes(lines(TEXTS))
    printed = submit(
        tmp_path,
        SCRIPT,
        *("--input", "mydataset.jsonl", "--output-prefix", "result", "--vocab", "vocab.json"),
        *("--merge-file", "merges.txt", "--dataset-impl", "mmap", "--tokenizer-type", "GPT2BPETokenizer"),
        *("--append-eod", "--workers", "64", "--append-eod"),
    )
    tokenizer = Tokenizer.from_str(tokenizer_json())
    expected = ten_lines(TEXTS, lambda text: tokenizer.encode(text).ids, tokenizer.token_to_id("<|endoftext|>"), "<u2")
    assert tuple((tmp_path / f"result_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx")) == expected
    assert f"{len(TEXTS)} documents" in printed
    read = subprocess.run([sys.executable, "-c", MEGATRON], cwd=tmp_path, capture_output=True, text=True, check=True)
    fourth = [*tokenizer.encode(TEXTS[3]).ids, tokenizer.token_to_id("<|endoftext|>")]
    assert json.loads(read.stdout) == [len(TEXTS), len(TEXTS) + 1, fourth]
    file_names = {path.name for path in tmp_path.iterdir()}
    assert file_names - {"vocab.json", "merges.txt", "mydataset.jsonl", "log"} == {
        "result_text_document.bin",
        "result_text_document.idx",
        "result.preprocess.json",
    }


def test_the_command_of_the_page_runs(tmp_path):
    english, chinese = run_by("tests/preprocess/test_on_spark.py::test_the_command_of_the_page_runs")
    assert english.text == chinese.text
    (tmp_path / "corpus.jsonl").write_bytes(lines(TEXTS))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    env = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ} | {"PATH": path}
    command = ["sh", "-euc", english.text]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert output(options(tmp_path, "corpus.jsonl", output_prefix=str(tmp_path / "result"))) == reference(TEXTS)


IN_ONE_SESSION = """
import contextlib, sys
from dataclasses import replace
from pathlib import Path
from tests.preprocess.corpus import options
from turnout.preprocess.spark_runner import run_spark, session

folder = Path(sys.argv[1])
of = options(folder, "one.jsonl", "two.jsonl.zst")
with session() as spark:
    print("sockets", spark.conf.get("spark.python.unix.domain.socket.enabled"), spark.sparkContext.appName)
    for count in (1, 3, 200):
        run = replace(of, output_prefix=str(folder / f"out{count}"), partitions=count)
        run_spark(run, lambda: contextlib.nullcontext(spark))
"""


@pytest.mark.contract("DL-79")
def test_two_inputs_give_the_same_for_1_3_and_200_partitions(tmp_path):
    (tmp_path / "one.jsonl").write_bytes(lines(TEXTS[:250]))
    (tmp_path / "two.jsonl.zst").write_bytes(zst(lines(TEXTS[250:])))
    (tmp_path / "script.py").write_text(IN_ONE_SESSION)
    settings = ("spark.python.unix.domain.socket.enabled=false", "spark.app.name=ours")
    printed = submit(tmp_path, tmp_path / "script.py", tmp_path, settings=settings)
    assert "sockets false ours" in printed
    of = options(tmp_path, "one.jsonl", "two.jsonl.zst")
    datasets = [output(replace(of, output_prefix=str(tmp_path / f"out{count}"))) for count in (1, 3, 200)]
    assert datasets == [reference(TEXTS)] * 3
    one, three, maximum = map(int, re.findall(r"Got job \d+ .* with (\d+) output partitions", printed))
    assert (one, three) == (1, 3)
    assert 3 < maximum < 200  # as many as there are chunks


MANY = texts(1500, seed=5)


def test_a_killed_executor_changes_nothing(tmp_path):
    (tmp_path / "many.jsonl").write_bytes(lines(MANY))
    of = options(tmp_path, "many.jsonl", partitions=40)
    with submitted(tmp_path, SCRIPT, *arguments(of), master="local-cluster[2,1,1024]") as running:
        wait_for_shards(of, 10, running)
        executors = [each for each in processes_of(running) if "CoarseGrainedExecutorBackend" in each.command]
        executors[0].kill()
        running.wait(200)
    printed = (tmp_path / "log").read_text()
    assert running.returncode == 0, printed
    assert "Lost executor" in printed
    assert output(of) == reference(MANY)


def test_a_killed_run_goes_on_from_its_finished_shards(tmp_path):
    (tmp_path / "many.jsonl").write_bytes(lines(MANY))
    of = options(tmp_path, "many.jsonl", partitions=40)
    with submitted(tmp_path, SCRIPT, *arguments(of)) as running:
        wait_for_shards(of, 10, running)
    (all_chunks,) = re.findall(r"chunks=(\d+)", (tmp_path / "log").read_text())
    (chunks,) = re.findall(r"chunks=(\d+)", submit(tmp_path, SCRIPT, *arguments(of)))
    assert int(chunks) <= int(all_chunks) - 10
    assert output(of) == reference(MANY)


@pytest.mark.parametrize(
    ("policy", "status", "message"),
    [
        pytest.param("stop", 1, "pyspark_preprocess.py: {}/bad.jsonl, line 201: not_text", id="a fault ends the run"),
        pytest.param("quarantine", 0, "400 documents, .* left out: 1 not_text", id="a fault is left out and kept"),
    ],
)
def test_a_fault_is_reported_as_on_one_machine(tmp_path, policy, status, message):
    good = lines(TEXTS).splitlines(keepends=True)
    (tmp_path / "bad.jsonl").write_bytes(b"".join([*good[:200], BAD_LINE, *good[200:]]))
    of = options(tmp_path, "bad.jsonl")
    printed = submit(tmp_path, SCRIPT, *arguments(of), "--on-error", policy, status=status)
    assert re.search(f"^{message.format(tmp_path)}", printed, re.M), printed
    assert "Successfully stopped SparkContext" in printed
    if not status:
        assert output(of) == reference(TEXTS)
        assert (tmp_path / "out.quarantine.jsonl").read_bytes() == BAD_LINE
