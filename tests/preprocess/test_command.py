"""The command line: the guide's options, clear refusals, and processes that may be killed."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.preprocess import corpus
from turnout.preprocess import command
from turnout.preprocess.dataset import check_dataset
from turnout.preprocess.errors import BadOption
from turnout.preprocess.options import Engine, OnError, Options, TokenizerFiles, TokenizerType, WorkShare

ROOT = Path(__file__).parents[2]
DOCUMENTS = corpus.texts(300)


def arguments(folder: Path, *more: str) -> list[str]:
    (folder / "tokenizer.json").write_text(corpus.tokenizer_json())
    if not (folder / "a.jsonl").exists():
        (folder / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
    return [
        *("--input", str(folder / "a.jsonl"), "--output-prefix", str(folder / "result")),
        *("--tokenizer-type", "HFTokenizer", "--vocab", str(folder / "tokenizer.json"), "--append-eod", *more),
    ]


@pytest.fixture
def start(tmp_path) -> Iterator:
    """Start the program in a process of its own, which ends with the test."""
    running = []

    def begin(*more: str, **options: object) -> subprocess.Popen:
        words = [sys.executable, "-m", "turnout.preprocess", *arguments(tmp_path, *more)]
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.contract("DL-69", "DL-70", "DL-71", "DL-73", "DL-74", "DL-76", "DL-77", "DL-78")
def test_the_guides_options_have_the_guides_defaults():
    of = _options("--input", "a.jsonl,b.jsonl.zst", "--output-prefix", "result", "--tokenizer-type", "HFTokenizer")
    assert of == Options(
        inputs=("a.jsonl", "b.jsonl.zst"),
        output_prefix="result",
        tokenizer=TokenizerFiles(TokenizerType.HF),
        keys=("text",),
        append_eod=False,
        ftfy=False,
        dataset_impl="mmap",
        workers=1,
        num_docs=None,
        log_interval=100,
    )


@pytest.mark.contract("DL-70", "DL-71", "DL-72", "DL-73", "DL-74", "DL-75")
def test_every_option_of_the_guide_is_read():
    of = _options(
        *("--input", "a.jsonl", "--jsonl-keys", "text", "title", "--num-docs", "1000"),
        *("--tokenizer-type", "GPT2BPETokenizer", "--vocab", "vocab.json", "--merge-file", "merges.txt"),
        *("--append-eod", "--append-eod", "--ftfy", "--output-prefix", "result", "--dataset-impl", "mmap"),
        *("--workers", "64", "--log-interval", "10"),
    )
    assert of == Options(
        inputs=("a.jsonl",),
        keys=("text", "title"),
        num_docs=1000,
        tokenizer=TokenizerFiles(TokenizerType.GPT2_BPE, "vocab.json", "merges.txt"),
        append_eod=True,
        ftfy=True,
        output_prefix="result",
        workers=64,
        log_interval=10,
    )


def _options(*words: str) -> Options:
    from turnout.preprocess.options import add_arguments, read_options

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser.parse_args(words))


@pytest.mark.contract("DL-72", "DL-77")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"workers": 0}, "--workers is 0, must be from 1 to 1024", id="no worker"),
        pytest.param({"inputs": ("a.jsonl", "")}, "--input is empty, or has an empty name", id="an empty input"),
        pytest.param({"keys": ("text", "text")}, "each key must occur only once", id="a key twice"),
        pytest.param({"keys": ("../x",)}, "usable in a file name", id="a key that leads elsewhere"),
        pytest.param({"dataset_impl": "cached"}, "TNTIDX", id="the old format"),
        pytest.param({"dataset_impl": "lazy"}, "TNTIDX", id="the other old format"),
    ],
)
def test_a_wrong_option_is_refused(changes, message):
    with pytest.raises(BadOption, match=re.escape(message)):
        Options(
            **(
                {"inputs": ("a.jsonl",), "output_prefix": "out", "tokenizer": TokenizerFiles(TokenizerType.HF)}
                | changes
            )
        )


def test_a_share_that_is_not_there_is_refused():
    with pytest.raises(BadOption, match="--index is 3, must be from 0 to 2"):
        WorkShare(3, 3)


@pytest.mark.contract("DL-72")
def test_another_tokenizer_is_rejected(capsys, tmp_path):
    with pytest.raises(SystemExit):
        command.main([*arguments(tmp_path), "--tokenizer-type", "SPMTokenizer"])
    assert "invalid choice: 'SPMTokenizer'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        pytest.param(["--output-prefix", "out"], 2, "--input is required", id="no input"),
        pytest.param(
            ["--input", "gone.jsonl", "--output-prefix", "out", "--tokenizer-type", "CharLevelTokenizer"],
            2,
            "gone.jsonl: No such file",
            id="an input that is not there",
        ),
        pytest.param(
            ["--input", "bad.jsonl", "--output-prefix", "out", "--tokenizer-type", "CharLevelTokenizer"],
            1,
            "bad.jsonl, line 1: bad_json (Input data was truncated); repair it, or leave it out with --on-error skip",
            id="a faulty document",
        ),
        pytest.param(
            ["--input", "nosuch://x/a.jsonl", "--output-prefix", "out", "--tokenizer-type", "CharLevelTokenizer"],
            2,
            "nosuch://x/a.jsonl: Protocol not known: nosuch",
            id="an input of an unknown scheme",
        ),
        pytest.param(
            ["--input", "bad.jsonl", "--output-prefix", "absent://x/out", "--tokenizer-type", "CharLevelTokenizer"],
            2,
            "absent://x/out.preprocess.json: install absent first",
            id="an output whose package is missing",
        ),
        pytest.param(
            [
                *("--input", "bad.jsonl", "--output-prefix", "out"),
                *("--tokenizer-type", "HFTokenizer", "--vocab-file", "nosuch://x/tokenizer.json"),
            ],
            2,
            "nosuch://x/tokenizer.json: Protocol not known: nosuch",
            id="a vocabulary of an unknown scheme",
        ),
        pytest.param(["check", "nosuch://x/out"], 2, "Protocol not known: nosuch", id="a dataset of an unknown scheme"),
        pytest.param(["check", "gone"], 1, "gone.idx: there is no such file", id="a dataset that is not there"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(words, status, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_bytes(b'{"text": "abc"')
    fsspec.register_implementation("absent", "absent.FileSystem", clobber=True, errtxt="install absent first")
    assert command.main(words) == status
    error = capsys.readouterr().err
    assert message in error
    assert len([line for line in error.splitlines() if not line.startswith("engine_chosen")]) == 1


def test_a_closed_output_of_a_check_is_no_traceback(tmp_path):
    assert command.main(arguments(tmp_path)) == 0
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "turnout.preprocess", "check", str(tmp_path / "result_text_document")]
    process = subprocess.run(words, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.contract("DL-71", "DL-76")
def test_processes_make_the_dataset_of_ten_lines(start, tmp_path):
    process = start("--workers", "2", "--chunk-bytes", "3000", "--log-interval", "1", "--num-docs", "600")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.startswith("300 documents, ")
    assert "engine_chosen engine=gigatoken" in errors
    assert re.search(r"^ 50%  300 documents, [\d,]+ documents/s, [\d.]+ MB/s$", errors, re.MULTILINE)
    assert (tmp_path / "result_text_document.bin").read_bytes() == corpus.reference(DOCUMENTS)[0]
    assert check_dataset(str(tmp_path / "result_text_document")).documents == 300


def test_a_full_disk_ends_the_run_and_a_later_one_goes_on(start, tmp_path):
    """A limit of the size of files stands for the disk: the same call fails, with another number."""
    limit = 20_000
    process = start(
        "--chunk-bytes", "3000", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "File too large" in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("result_*"))
    process = start("--chunk-bytes", "3000")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert (tmp_path / "result_text_document.bin").read_bytes() == corpus.reference(DOCUMENTS)[0]


def test_an_interrupted_run_says_how_it_goes_on(tmp_path, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.make_dataset(parser.parse_args(arguments(tmp_path)), "preprocess", interrupted) == 130
    assert "run the same command again to continue" in capsys.readouterr().err


def test_policies_and_engines_are_read():
    base = ("--input", "a", "--output-prefix", "b", "--tokenizer-type", "HFTokenizer")
    of = _options(*base, "--on-error", "quarantine", "--engine", "reference", "--index", "1", "--indexes", "4")
    assert (of.on_error, of.engine, of.share) == (OnError.QUARANTINE, Engine.REFERENCE, WorkShare(1, 4))
