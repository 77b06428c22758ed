"""The text of `hack.bench preprocess` is like that of the web, and its tables say what was measured."""

import json
import math
import sys
from itertools import islice

import numpy as np
import pytest

from hack.bench.preprocess import measure, sides, text
from hack.bench.preprocess.corpus import Corpus
from hack.bench.preprocess.measure import CommandFailed, Usage
from hack.bench.preprocess.results import MergeResult, PreprocessFindings, PreprocessRunResult, tables, targets
from hack.bench.preprocess.run import PreprocessPlan, run_preprocessors
from hack.bench.preprocess.sides import (
    AUTO,
    DATATROVE,
    FAST,
    GIGATOKEN,
    OLD,
    OURS,
    SPARK,
    MissingPreprocessor,
    Preprocessor,
)

MB = 1_000_000


@pytest.fixture(scope="module")
def lines():
    return text.block_of_lines(0).splitlines(keepends=True)


def test_equal_numbers_give_equal_blocks_and_others_give_others():
    assert text.block_of_lines(7) == text.block_of_lines(7)
    assert text.block_of_lines(7) != text.block_of_lines(8)


def test_a_file_has_whole_lines_however_many_processes_make_it(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    text.write(one, 18 * MB, processes=1)
    text.write(two, 18 * MB, processes=2)
    content = one.read_bytes()
    assert content == two.read_bytes()
    assert content.endswith(b"\n")
    assert content[: 18 * MB].count(b"\n") == content.count(b"\n") - (len(content) > 18 * MB)


def test_every_line_is_one_object_with_a_text_and_a_second_field(lines):
    records = [json.loads(line) for line in lines]
    assert all(set(record) == {"text", "source", "id"} for record in records)
    assert len({record["id"] for record in records}) == len(records)


def test_lengths_are_skewed_about_a_mean_of_eight_kilobytes(lines):
    lengths = np.array([len(line) for line in lines])
    assert 6_000 < lengths.mean() < 12_000
    assert np.median(lengths) < lengths.mean() / 1.8
    assert np.sort(lengths)[-len(lengths) // 100 :].sum() > 0.08 * lengths.sum()  # the longest hundredth


def test_half_of_the_lines_have_escapes_and_there_are_several_scripts(lines):
    escaped = sum(b"\\u" in line for line in lines) / len(lines)
    assert 0.35 < escaped < 0.65
    text = "".join(json.loads(line)["text"] for line in lines)
    assert {"\n", '"', "\\", "\t", "—", "é"} <= set(text)
    for first, last in ("一鿿", "ая", "가힣", "ぁん", "اي", "कह", "😀🙏"):
        assert any(first <= letter <= last for letter in text), first


def test_new_words_never_end():
    known, growth = set(), []
    for number in range(3):
        before = len(known)
        for line in islice(text.block_of_lines(number).splitlines(), 1_000):
            known.update(json.loads(line)["text"].split())
        growth.append(len(known) - before)
    assert growth[2] > 0.5 * growth[0]
    assert growth[0] > growth[1] > growth[2]


def test_the_long_document_has_the_text_of_the_small_ones(tmp_path):
    joined, small = Corpus(tmp_path).long_document(2 * MB, 1 * MB)
    texts = [json.loads(line)["text"] for line in joined.read_bytes().splitlines()]
    parts = [json.loads(line)["text"] for line in small.read_bytes().splitlines()]
    assert "".join(texts) == "".join(parts)
    assert max(map(len, texts)) > 1 * MB > max(map(len, parts))


def test_halves_are_whole_lines_and_lose_nothing(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    first, second = Corpus(tmp_path).halves(path)
    assert first.read_bytes() + second.read_bytes() == path.read_bytes()
    assert first.read_bytes() == b"one\ntwo\nthree\n"


def touch(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


TOOL, OLD_TOOL, PYTHON = (
    f"Megatron-LM/{name}" for name in ("tools/preprocess_data_fast.py", "tools/preprocess_data.py", ".venv/bin/python")
)
DATATROVE_PYTHON = "datatrove/bin/python"


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        pytest.param(None, dict.fromkeys([FAST, OLD, DATATROVE], "names no folder"), id="nobody names a folder"),
        pytest.param([], {FAST: TOOL, OLD: OLD_TOOL, DATATROVE: DATATROVE_PYTHON}, id="an empty folder"),
        pytest.param([TOOL, OLD_TOOL, DATATROVE_PYTHON], {FAST: PYTHON, OLD: PYTHON}, id="no environment"),
        pytest.param([TOOL, PYTHON, DATATROVE_PYTHON], {OLD: OLD_TOOL}, id="one script is missing"),
        pytest.param([TOOL, OLD_TOOL, PYTHON, DATATROVE_PYTHON], {}, id="everything is there"),
    ],
)
def test_a_peer_that_is_not_there_is_named_with_the_reason(tmp_path, files, missing):
    touch(tmp_path, files or ())
    found = sides.peers({} if files is None else {"TURNOUT_PEERS": str(tmp_path)}, tmp_path / "tokenizer")
    assert [peer.name for peer in found] == [FAST, OLD, DATATROVE]
    absent = [peer for peer in found if isinstance(peer, MissingPreprocessor)]
    assert [peer.name for peer in absent] == list(missing)
    assert all(missing[peer.name] in peer.note and "not run: " in peer.note for peer in absent)


def test_each_side_reads_the_text_and_writes_behind_the_prefix(tmp_path):
    touch(tmp_path, [TOOL, OLD_TOOL, PYTHON, DATATROVE_PYTHON])
    every = [
        *sides.peers({"TURNOUT_PEERS": str(tmp_path)}, tmp_path),
        sides.our_side("auto", tmp_path / "tokenizer.json"),
    ]
    for side in every:
        assert isinstance(side, Preprocessor)
        words = " ".join(side.command([tmp_path / "a.jsonl"], tmp_path / "out"))
        assert str(tmp_path / "a.jsonl") in words
        assert str(tmp_path / "out") in words
        assert side.outputs


def run(wall_s, size_mb=100, cpu_s=0.0, peak_mib=0.0):
    return PreprocessRunResult(size_mb * MB, Usage(wall_s, cpu_s, peak_mib))


STARTS = {OURS: 1, AUTO: 2, GIGATOKEN: 0, FAST: 9, OLD: 8, SPARK: 5}
FINDINGS = PreprocessFindings(
    starts={name: [Usage(wall_s, 0, 0)] * (1 if name == OLD else 3) for name, wall_s in STARTS.items()},
    rounds={
        OURS: [run(3), run(2), run(11)],
        AUTO: [run(4), run(4), run(4)],
        GIGATOKEN: [run(1), run(1), run(5)],
        FAST: [run(11), run(12), run(13)],
        OLD: [run(18, size_mb=10)],
        SPARK: [run(9), run(9), run(25)],
    },
    memory={OURS: [run(3, peak_mib=300), run(9, 400, peak_mib=500)], FAST: [run(9, peak_mib=4_000)]},
    long_document=[(run(6), run(5)), (run(9), run(5)), (run(5), run(5))],
    merges=[MergeResult(100, 2.0, 1.0), MergeResult(100, 1.0, 1.0), MergeResult(100, 1.0, 1.5)],
    equal={AUTO: True, FAST: True, OLD: False},
)


@pytest.mark.parametrize(
    ("side", "ours", "ratio"),
    [
        pytest.param(GIGATOKEN, OURS, 0.5, id="the median of the rounds' ratios, not the ratio of the medians"),
        pytest.param(FAST, AUTO, 1.5, id="start-up is no part of a rate"),
        pytest.param(OLD, AUTO, 50.0, id="a slow side runs once, on less text"),
        pytest.param(DATATROVE, AUTO, math.nan, id="a side that did not run has no ratio"),
    ],
)
def test_ratios_to_a_side(side, ours, ratio):
    assert FINDINGS.ratio_to(side, ours) == pytest.approx(ratio, nan_ok=True)


def test_targets_are_met_or_not_and_what_was_not_measured_is_not():
    found = {target.name: target for target in targets(FINDINGS, full=True)}
    met = {name: target.is_met for name, target in found.items()}
    assert met == {
        "rate, --engine gigatoken, beside gigatoken's own file path": False,
        "rate, --engine auto, beside gigatoken's own file path": False,
        "rate, --engine auto, beside preprocess_data_fast.py": True,
        "rate, --engine auto, beside preprocess_data.py": True,
        "rate, --engine auto, beside datatrove's writer": False,
        "memory for 1, 4 and 16 GB, MiB": True,
        "merge, beside cp of the same bytes": True,
        "a long document, beside the same bytes in small ones": True,
        "Spark on local[2], beside the local runner": False,
    }
    assert found["memory for 1, 4 and 16 GB, MiB"].value == 500
    assert found["Spark on local[2], beside the local runner"].value == pytest.approx(0.5)
    assert math.isnan(found["rate, --engine auto, beside datatrove's writer"].value)


def test_tables_have_a_row_for_each_side_that_ran():
    rates, memory, long, merges = tables(FINDINGS)
    rows = {row[0]: row for row in rates.texts()}
    assert list(rows) == [OURS, AUTO, GIGATOKEN, FAST, OLD, SPARK]
    assert rows[FAST][3] == "33.3"
    assert [row[-1] for row in rates.rows] == ["-", "equal", "-", "equal", "DIFFERENT", "-"]
    assert rates.figures()[f"{FAST}: ours / it"] == pytest.approx(1.5)
    assert [row[1:3] for row in memory.texts()] == [["0.10", "300"], ["0.40", "500"], ["0.10", "4,000"]]
    assert len(long.rows) == len(merges.rows) == 3


def test_a_run_without_findings_shows_an_empty_table_and_meets_nothing():
    assert [table.rows for table in tables(PreprocessFindings())] == [[]]
    assert not any(target.is_met for target in targets(PreprocessFindings(), full=False))


def test_a_command_is_measured_with_the_memory_of_its_children(tmp_path):
    program = (
        "import subprocess, sys, time\n"
        "child = 'import time; x = bytearray(200 << 20); time.sleep(0.5)'\n"
        "subprocess.run([sys.executable, '-c', child])\n"
    )
    usage = measure.run([sys.executable, "-c", program], {}, tmp_path / "log", memory=True)
    assert usage.wall_s >= 0.5
    assert 200 < usage.peak_mib < 320
    assert 0 < usage.cpu_s < 10


def test_a_command_that_fails_says_what_it_printed_last(tmp_path):
    with pytest.raises(CommandFailed, match="status 3: no such vocabulary") as failed:
        measure.run([sys.executable, "-c", "print('no such vocabulary'); raise SystemExit(3)"], {}, tmp_path / "log")
    assert failed.value.status == 3


@pytest.mark.long  # what it measures runs in `make bench`
def test_every_part_of_the_benchmark_runs_on_little_text(tmp_path, monkeypatch):
    monkeypatch.delenv("TURNOUT_PEERS", raising=False)
    plan = PreprocessPlan(2 * MB, MB, rounds=1, memory=((2 * MB, 2),), long_bytes=MB, long_rounds=1, merges=1)
    outcome = run_preprocessors(tmp_path, plan, full=False)
    assert len(outcome.tables) == 4
    assert {row[-1] for row in outcome.tables[0].rows} <= {"equal", "-"}
    assert f"{OLD}: not run: TURNOUT_PEERS names no folder." in outcome.notes
    assert outcome.figures
