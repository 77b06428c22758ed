"""A whole run equals ten lines that keep everything in memory, whatever the input, keys, engine and chunks."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocess import corpus
from turnout.preprocess.dataset import Dataset, check_dataset
from turnout.preprocess.errors import BadDocument, BadOption, OutputExists, ResumeRefused, RunInProgress
from turnout.preprocess.options import Engine, InputLimits, OnError, TokenizerFiles, TokenizerType, WorkShare
from turnout.preprocess.progress import progress_of
from turnout.preprocess.run import Totals, merge_if_complete, prepare_run
from turnout.preprocess.run_lock import LockHolder, RunLock, run_lock
from turnout.preprocess.run_record import RunIdentity, first_difference
from turnout.preprocess.shards import LINES_BYTES, make_shard, record_path

DOCUMENTS = corpus.texts(120)


@pytest.mark.contract("DL-69", "DL-74", "DL-76", "DL-77")
@pytest.mark.parametrize(
    ("inputs", "changes"),
    [
        pytest.param({"a.jsonl": corpus.lines(DOCUMENTS)}, {}, id="one file"),
        pytest.param({"a.jsonl": corpus.lines(DOCUMENTS)}, {"chunk_bytes": 1 << 20}, id="in one chunk"),
        pytest.param({"a.jsonl": corpus.lines(DOCUMENTS)}, {"chunk_bytes": 1}, id="in a chunk for each line"),
        pytest.param({"a.jsonl": corpus.lines(DOCUMENTS)}, {"engine": Engine.REFERENCE}, id="by the reference"),
        pytest.param({"a.jsonl": corpus.lines(DOCUMENTS)}, {"engine": Engine.GIGATOKEN}, id="by gigatoken"),
        pytest.param(
            {"a.jsonl": corpus.lines(DOCUMENTS)}, {"append_eod": False}, id="without the end-of-document token"
        ),
        pytest.param(
            {"b.jsonl": corpus.lines(DOCUMENTS[:70]), "a.jsonl": corpus.lines(DOCUMENTS[70:])},
            {},
            id="two files in order",
        ),
        pytest.param(
            {
                "b.jsonl.zst": corpus.zst(corpus.lines(DOCUMENTS[:70])),
                "a.jsonl.gz": corpus.gz(corpus.lines(DOCUMENTS[70:])),
            },
            {},
            id="archives",
        ),
        pytest.param({"a.zip": corpus.zipped([(str(n), t.encode()) for n, t in enumerate(DOCUMENTS)])}, {}, id="a zip"),
        pytest.param({"a.jsonl": b"\xef\xbb\xbf" + corpus.lines(DOCUMENTS)}, {}, id="a byte order mark"),
    ],
)
def test_a_dataset_is_the_one_of_ten_lines(inputs, changes, tmp_path):
    for name, content in inputs.items():
        (tmp_path / name).write_bytes(content)
    of = corpus.options(tmp_path, *inputs, **changes)
    totals = corpus.run(of)
    assert totals == Totals(120, totals.tokens, {})
    reference = corpus.reference(DOCUMENTS, eod=of.append_eod)
    assert corpus.output(of) == reference
    assert totals.tokens * 2 == len(reference[0])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out")) == [
        "out.preprocess.json",
        "out_text_document.bin",
        "out_text_document.idx",
    ]


@given(
    documents=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=20),
    huge=st.integers(0, 20_000),
    chunk_bytes=st.integers(1, 400),
    append_eod=st.booleans(),
)
def test_any_documents_give_the_dataset_of_ten_lines(documents, huge, chunk_bytes, append_eod, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    documents = [*documents, "the quick <|endoftext|> fox\0 " * (huge // 24), "", "last"]
    (folder / "a.jsonl").write_bytes(corpus.lines(documents))
    of = corpus.options(folder, "a.jsonl", chunk_bytes=chunk_bytes, append_eod=append_eod, engine=Engine.GIGATOKEN)
    corpus.run(of)
    assert corpus.output(of) == corpus.reference(documents, eod=append_eod)


@pytest.mark.contract("DL-70")
def test_each_key_has_a_dataset_of_its_own_field(tmp_path):
    titles = corpus.texts(30, seed=5)
    raw = b"".join(
        json.dumps({"title": title, "text": text}).encode() + b"\n"
        for title, text in zip(titles, DOCUMENTS, strict=False)
    )
    (tmp_path / "a.jsonl").write_bytes(raw)
    of = corpus.options(tmp_path, "a.jsonl", keys=("text", "title"))
    corpus.run(of)
    assert corpus.output(of, "text") == corpus.reference(DOCUMENTS[:30])
    assert corpus.output(of, "title") == corpus.reference(titles)


@pytest.mark.contract("DL-77")
def test_a_large_vocabulary_gives_int32(tmp_path):
    vocabulary = json.loads(corpus.tokenizer_json())
    first = len(vocabulary["model"]["vocab"])
    vocabulary["model"]["vocab"] |= {f"unused{number}": number for number in range(first, 65_500)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
    of = corpus.options(tmp_path, "a.jsonl")
    corpus.run(of)
    small = corpus.reference(DOCUMENTS)[0]
    import numpy as np

    assert corpus.output(of)[0] == np.frombuffer(small, "<u2").astype("<i4").tobytes()
    assert check_dataset(f"{of.output_prefix}_text_document").dtype == "int32"


@pytest.mark.contract("DL-75")
def test_ftfy_repairs_the_text_first(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(["naÃ¯ve â€œquotesâ€\x9d"]))
    plain, repaired = (
        corpus.options(tmp_path, "a.jsonl", ftfy=ftfy, output_prefix=str(tmp_path / f"out-{ftfy}"))
        for ftfy in (False, True)
    )
    corpus.run(plain), corpus.run(repaired)
    assert corpus.output(plain) != corpus.output(repaired)
    assert corpus.output(repaired) == corpus.reference(['naïve "quotes"'])


def test_bytes_of_the_char_level_tokenizer_are_written(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
    of = corpus.options(tmp_path, "a.jsonl", tokenizer=TokenizerFiles(TokenizerType.CHAR_LEVEL))
    corpus.run(of)
    assert corpus.output(of) == corpus.ten_lines(DOCUMENTS, str.encode, 0, "<u2")


LONG = " ".join(corpus.texts(80, seed=3))


@pytest.mark.parametrize("append_eod", [pytest.param(True, id="with its end"), pytest.param(False, id="without")])
def test_only_documents_of_the_dataset_are_counted(append_eod, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(["the fox", "", "a dog", ""]))
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=10**6, append_eod=append_eod)
    assert corpus.run(of).documents == check_dataset(f"{of.output_prefix}_text_document").documents == 2


def test_a_document_counts_if_one_key_has_a_token(tmp_path):
    documents = [("the fox", "a"), ("", "b"), ("a dog", ""), ("", "")]
    raw = b"".join(json.dumps({"text": text, "title": title}).encode() + b"\n" for text, title in documents)
    (tmp_path / "a.jsonl").write_bytes(raw)
    of = corpus.options(tmp_path, "a.jsonl", keys=("text", "title"))
    assert corpus.run(of).documents == 3
    assert [check_dataset(f"{of.output_prefix}_{key}_document").documents for key in of.keys] == [2, 2]


@pytest.mark.parametrize("append_eod", [pytest.param(True, id="with its end"), pytest.param(False, id="without")])
def test_a_document_in_parts_is_one_document(append_eod, tmp_path):
    documents = [*DOCUMENTS[:5], LONG, *DOCUMENTS[5:9], LONG[::-1], LONG]
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(documents))
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=700, append_eod=append_eod)
    with prepare_run(of) as run:
        assert sum(chunk.part is not None and chunk.part.is_last for chunk in run.plan.chunks) == 3
        totals = merge_if_complete(run, [make_shard(run.settings, chunk) for chunk in run.pending])
    assert totals.documents == len(documents)
    assert corpus.output(of) == corpus.reference(documents, eod=append_eod)


def test_megatron_reads_the_dataset(tmp_path):
    indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    documents = [*DOCUMENTS, LONG]
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(documents))
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=700)
    corpus.run(of)
    theirs = indexed_dataset.IndexedDataset(f"{of.output_prefix}_text_document", mmap=True)
    ours = Dataset(f"{of.output_prefix}_text_document")
    assert len(theirs) == len(ours) == len(documents)
    assert theirs.document_indices.tolist() == list(range(len(documents) + 1))
    assert all(theirs[number].tolist() == ours[number].tolist() for number in range(len(documents)))
    assert theirs.sequence_lengths.tolist() == [len(ours[number]) for number in range(len(documents))]


FAULTY = b'{"text":"a"}\n{"text":\n{"text":"b"}\n{"no":1}\n\n{"text":"\xff"}\n{"text":"c"}\n'
FAULTS = {"bad_json": 1, "bad_utf8": 1, "missing_key": 1}


def _faulty(folder: Path, **changes: object):
    (folder / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS[:3]))
    (folder / "b.jsonl").write_bytes(FAULTY)
    return corpus.options(folder, "a.jsonl", "b.jsonl", **changes)


@pytest.mark.parametrize(
    "chunk_bytes", [pytest.param(1, id="a chunk for each line"), pytest.param(10**6, id="one chunk")]
)
class TestFaults:
    def test_a_run_stops_at_a_fault_with_file_and_line(self, chunk_bytes, tmp_path):
        with pytest.raises(BadDocument, match=r"b\.jsonl, line 2: bad_json"):
            corpus.run(_faulty(tmp_path, chunk_bytes=chunk_bytes))
        assert not list(tmp_path.glob("out_*"))

    @pytest.mark.parametrize("on_error", [OnError.SKIP, OnError.QUARANTINE])
    def test_faults_are_counted_and_listed(self, on_error, chunk_bytes, tmp_path):
        of = _faulty(tmp_path, chunk_bytes=chunk_bytes, on_error=on_error)
        totals = corpus.run(of)
        assert (totals.documents, totals.fault_counts) == (6, FAULTS)
        assert corpus.output(of) == corpus.reference([*DOCUMENTS[:3], "a", "b", "c"])
        listed = [json.loads(line) for line in Path(f"{of.output_prefix}.faults.jsonl").read_text().splitlines()]
        assert [(Path(fault["file"]).name, fault["line"], fault["reason"]) for fault in listed] == [
            ("b.jsonl", 2, "bad_json"),
            ("b.jsonl", 4, "missing_key"),
            ("b.jsonl", 6, "bad_utf8"),
        ]
        quarantine = Path(f"{of.output_prefix}.quarantine.jsonl")
        if on_error is OnError.QUARANTINE:
            assert quarantine.read_bytes() == b'{"text":\n{"no":1}\n{"text":"\xff"}\n'
        else:
            assert not quarantine.exists()

    def test_a_dataset_without_faults_has_no_lists_of_an_earlier_one(self, chunk_bytes, tmp_path):
        of = _faulty(tmp_path, chunk_bytes=chunk_bytes, on_error=OnError.QUARANTINE)
        corpus.run(of)
        for path in [*tmp_path.glob("out.preprocess.json"), *tmp_path.glob("out_text_document.*")]:
            path.unlink()
        (tmp_path / "b.jsonl").write_bytes(corpus.lines(["repaired"]))
        corpus.run(of)
        assert not [*tmp_path.glob("out.faults.jsonl"), *tmp_path.glob("out.quarantine.jsonl")]

    def test_a_stopped_run_goes_on_with_another_policy(self, chunk_bytes, tmp_path):
        of = _faulty(tmp_path, chunk_bytes=chunk_bytes)
        with pytest.raises(BadDocument):
            corpus.run(of)
        assert corpus.run(replace(of, on_error=OnError.SKIP)).fault_counts == FAULTS

    def test_a_run_that_goes_on_with_skip_has_no_raw_lines(self, chunk_bytes, tmp_path):
        of = _faulty(tmp_path, chunk_bytes=chunk_bytes, on_error=OnError.QUARANTINE)
        with prepare_run(of) as run:
            for chunk in run.pending:
                make_shard(run.settings, chunk)
        assert corpus.run(replace(of, on_error=OnError.SKIP)).fault_counts == FAULTS
        assert [*tmp_path.glob("out.faults.jsonl")]
        assert not [*tmp_path.glob("out.quarantine.jsonl")]


def test_rejected_lines_are_not_collected_in_memory(tmp_path):
    line = json.dumps({"other": "x" * 1000}).encode() + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(corpus.gz(line * 20_000))
    of = corpus.options(tmp_path, "a.jsonl.gz", chunk_bytes=100_000, on_error=OnError.QUARANTINE)
    with prepare_run(of) as run:
        tracemalloc.start()
        try:
            records = [make_shard(run.settings, chunk) for chunk in run.pending]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        merge_if_complete(run, records)
    assert Path(f"{of.output_prefix}.quarantine.jsonl").read_bytes() == line * 20_000
    assert peak_bytes < len(line) * 20_000 / 2


def test_a_chunk_of_several_blocks_keeps_order_and_line_numbers(tmp_path):
    documents = [text * 1_200 for text in DOCUMENTS[:24]]
    raw = corpus.lines(documents).splitlines(keepends=True)
    assert sum(map(len, raw)) > 2 * LINES_BYTES
    (tmp_path / "a.jsonl").write_bytes(b"".join([*raw[:20], b"\n", b"{\n", *raw[20:]]))
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=10**9, on_error=OnError.SKIP)
    assert corpus.run(of).documents == 24
    assert corpus.output(of) == corpus.reference(documents)
    (fault,) = Path(f"{of.output_prefix}.faults.jsonl").read_text().splitlines()
    assert json.loads(fault)["line"] == 22


def test_a_cut_archive_keeps_what_came_before(tmp_path):
    content = corpus.gz(corpus.lines(DOCUMENTS))
    (tmp_path / "a.jsonl.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "b.jsonl").write_bytes(corpus.lines(["after"]))
    of = corpus.options(tmp_path, "a.jsonl.gz", "b.jsonl", on_error=OnError.SKIP)
    totals = corpus.run(of)
    assert totals.fault_counts == {"truncated_archive": 1}
    assert corpus.output(of) == corpus.reference([*DOCUMENTS[: totals.documents - 1], "after"])
    assert 10 < totals.documents < 120


def test_a_broken_part_leaves_its_document_out(tmp_path):
    raw = corpus.lines([LONG.replace("\n", " ")])
    middle = raw.index(b" fox", len(raw) // 2)
    (tmp_path / "a.jsonl").write_bytes(
        corpus.lines(["a"]) + raw[:middle] + b"\xff" + raw[middle:] + corpus.lines(["b"])
    )
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=700, on_error=OnError.QUARANTINE)
    totals = corpus.run(of)
    assert (totals.documents, totals.fault_counts) == (2, {"bad_utf8": 1})
    assert corpus.output(of) == corpus.reference(["a", "b"])


def test_ids_beyond_the_vocabulary_are_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(["the fox", "the\0", "a dog"]))
    of = corpus.options(tmp_path, "a.jsonl", on_error=OnError.SKIP, engine=Engine.REFERENCE, chunk_bytes=10**6)
    with prepare_run(of) as run:
        import msgspec

        highest = 256  # of the ids of "the fox" and "a dog" none is the NUL's
        too_small = msgspec.structs.replace(run.settings.tokenizer, vocabulary_size=highest)
        records = [
            make_shard(msgspec.structs.replace(run.settings, tokenizer=too_small), chunk) for chunk in run.pending
        ]
    listed = [(fault.line, fault.reason.value) for record in records for fault in record.faults]
    assert listed
    assert {reason for _, reason in listed} == {"token_out_of_range"}
    assert sum(record.documents for record in records) == 3 - len(listed)


class TestResume:
    def _begun(self, folder: Path):
        """A run that ended after two of its shards."""
        (folder / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
        of = corpus.options(folder, "a.jsonl")
        with prepare_run(of) as run:
            for chunk in run.pending[:2]:
                make_shard(run.settings, chunk)
        return of

    def test_finished_shards_are_not_made_again(self, tmp_path):
        of = self._begun(tmp_path)
        with prepare_run(of) as run:
            assert [chunk.index for chunk in run.chunks if chunk not in run.pending] == [0, 1]
            merge_if_complete(run, [make_shard(run.settings, chunk) for chunk in run.pending])
        assert corpus.output(of) == corpus.reference(DOCUMENTS)

    def test_the_progress_counts_the_documents_of_the_earlier_run(self, tmp_path):
        of = replace(self._begun(tmp_path), num_docs=len(DOCUMENTS))
        with prepare_run(of) as run:
            progress = progress_of(run, 0.0)
            for chunk in run.pending:
                progress.add(chunk, make_shard(run.settings, chunk))
        assert progress.line(1.0).startswith("100%")

    def test_a_changed_input_is_refused(self, tmp_path):
        of = self._begun(tmp_path)
        content = (tmp_path / "a.jsonl").read_bytes()
        (tmp_path / "a.jsonl").write_bytes(content.replace(b"quick", b"slow.", 1))
        with pytest.raises(ResumeRefused, match=r"a\.jsonl: changed"):
            corpus.run(of)

    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            pytest.param({"append_eod": False}, "append_eod was True, is False", id="an option"),
            pytest.param({"engine": Engine.REFERENCE}, "engine was gigatoken, is reference", id="an engine"),
            pytest.param({"inputs": ("a.jsonl", "a.jsonl")}, "there were 1 inputs, there are 2", id="the inputs"),
        ],
    )
    def test_another_run_is_refused(self, changes, what, tmp_path):
        of = self._begun(tmp_path)
        if "inputs" in changes:
            changes = {"inputs": of.inputs * 2}
        with pytest.raises(ResumeRefused, match=what):
            corpus.run(replace(of, **changes))

    def test_an_input_of_another_format_is_named(self):
        one, other = (
            RunIdentity((("a.gz", form, 5),), ("text",), "HF", "0", None, False, False, 1, 1, 1)
            for form in ("jsonl.gz", "tar.gz")
        )
        assert first_difference(one, other) == "input a.gz (jsonl.gz, 5 bytes) is now a.gz (tar.gz, 5 bytes)"

    def test_a_torn_shard_is_made_again(self, tmp_path):
        of = self._begun(tmp_path)
        shard = Path(f"{of.output_prefix}.shards/00000001.0.tokens")
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
        corpus.run(of)
        assert corpus.output(of) == corpus.reference(DOCUMENTS)

    @pytest.mark.parametrize("torn", [b"{", b'{"input_xxh3": ["\xff"]}'])
    def test_a_torn_record_is_made_again(self, torn, tmp_path):
        of = self._begun(tmp_path)
        Path(record_path(f"{of.output_prefix}.shards", 1)).write_bytes(torn)
        corpus.run(of)
        assert corpus.output(of) == corpus.reference(DOCUMENTS)

    def test_the_same_command_after_the_end_changes_nothing(self, tmp_path):
        of = self._begun(tmp_path)
        totals = corpus.run(of)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        assert corpus.run(of) == totals
        assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before

    def test_an_output_of_something_else_is_kept(self, tmp_path):
        of = self._begun(tmp_path)
        corpus.run(of)
        files = r"out\.preprocess\.json, .*/out_text_document\.bin and \.idx, or choose another prefix"
        with pytest.raises(OutputExists, match=f"append_eod was True, is False; remove .*/{files}"):
            corpus.run(replace(of, append_eod=False))
        with pytest.raises(OutputExists, match="engine was gigatoken, is reference"):
            corpus.run(replace(of, engine=Engine.REFERENCE))
        Path(f"{of.output_prefix}.preprocess.json").unlink()
        with pytest.raises(OutputExists, match="without the record of a run"):
            corpus.run(of)

    def test_a_second_run_is_refused_with_the_name_of_the_first(self, tmp_path):
        of = self._begun(tmp_path)
        with prepare_run(of), pytest.raises(RunInProgress, match=r"held by process \d+ on "), prepare_run(of):
            pass


class TestShares:
    """The pods of an Indexed Job share one output. Whoever ends last merges it."""

    def _options(self, folder: Path):
        (folder / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
        return [corpus.options(folder, "a.jsonl", share=WorkShare(index, 3)) for index in range(3)]

    def test_the_expected_documents_are_those_of_all_shares(self, tmp_path):
        (share, *_) = self._options(tmp_path)
        with prepare_run(replace(share, num_docs=len(DOCUMENTS))) as run:
            progress = progress_of(run, 0.0)
            for chunk in run.pending:
                progress.add(chunk, make_shard(run.settings, chunk))
        assert int(progress.line(1.0).split("%")[0]) > 80

    def test_the_last_share_merges(self, tmp_path):
        shares = self._options(tmp_path)
        assert [corpus.run(share) is None for share in shares] == [True, True, False]
        assert corpus.output(shares[0]) == corpus.reference(DOCUMENTS)

    def test_shares_may_end_in_any_order_and_start_again(self, tmp_path):
        shares = self._options(tmp_path)
        assert [corpus.run(shares[index]) is None for index in (2, 0, 2, 0)] == [True] * 4
        totals = corpus.run(shares[1])
        assert corpus.output(shares[0]) == corpus.reference(DOCUMENTS)
        assert [corpus.run(share) for share in shares] == [totals] * 3

    @pytest.mark.parametrize("name", ["00000000.0.tokens", "00000000.json"])
    def test_a_torn_shard_of_another_share_is_made_again(self, name, tmp_path):
        shares = self._options(tmp_path)
        corpus.run(shares[0])
        torn = Path(f"{shares[0].output_prefix}.shards") / name
        torn.write_bytes(torn.read_bytes()[:-1])
        assert [corpus.run(share) is None for share in shares[1:]] == [True, False]
        assert corpus.output(shares[0]) == corpus.reference(DOCUMENTS)

    def test_shares_work_side_by_side(self, tmp_path):
        shares = self._options(tmp_path)
        with prepare_run(shares[0]) as one, prepare_run(shares[1]) as other:
            assert merge_if_complete(one, [make_shard(one.settings, chunk) for chunk in one.pending]) is None
            assert merge_if_complete(other, [make_shard(other.settings, chunk) for chunk in other.pending]) is None
        assert corpus.run(shares[2]) is not None

    def test_a_share_whose_plan_was_replaced_loses_no_document(self, tmp_path):
        shares = self._options(tmp_path)
        replanned = [replace(share, limits=InputLimits(chunk_bytes=900)) for share in shares]
        with prepare_run(shares[1]) as old:
            shutil.rmtree(f"{shares[0].output_prefix}.shards")
            assert [corpus.run(replanned[0]), corpus.run(replanned[2])] == [None, None]
            records = [make_shard(old.settings, chunk) for chunk in old.pending]
            assert corpus.run(replanned[0]) is None
            with pytest.raises(ResumeRefused, match="replaced during this run; start again"):
                merge_if_complete(old, records)
        assert corpus.run(replanned[1]).documents == len(DOCUMENTS)
        assert corpus.output(shares[0]) == corpus.reference(DOCUMENTS)

    def test_a_share_whose_dataset_another_one_merged_is_done(self, tmp_path):
        shares = self._options(tmp_path)
        corpus.run(shares[2])
        with prepare_run(shares[0]) as one, prepare_run(shares[1]) as other:
            records = [make_shard(one.settings, chunk) for chunk in one.pending]
            totals = merge_if_complete(other, [make_shard(other.settings, chunk) for chunk in other.pending])
            assert merge_if_complete(one, records) == totals is not None


@pytest.mark.contract("DL-78")
def test_the_record_says_where_the_dataset_came_from(tmp_path):
    import xxhash

    (tmp_path / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS[:3]))
    of = corpus.options(tmp_path, "a.jsonl", chunk_bytes=10**6)
    corpus.run(of)
    record = json.loads(Path(f"{of.output_prefix}.preprocess.json").read_text())
    (source,) = record["inputs"]
    assert source == {
        "path": str(tmp_path / "a.jsonl"),
        "bytes": (tmp_path / "a.jsonl").stat().st_size,
        "pieces": 1,
        "xxh3_128": xxhash.xxh3_128_hexdigest((tmp_path / "a.jsonl").read_bytes()),
    }
    assert record["tokenizer"]["engine"] == "gigatoken"
    assert record["tokenizer"]["padded_vocabulary"] == 384
    assert record["sequences"] == {"text": 3}
    assert {"python", "gigatoken", "tokenizers"} <= record["versions"].keys()


class TestObjectStorage:
    """A prefix and inputs that are URLs: nothing is renamed there, and locks are names that are renewed."""

    def _options(self, folder: Path):
        import fsspec

        memory = fsspec.filesystem("memory")
        memory.store.clear()
        memory.pipe_file("/corpus/a.jsonl", corpus.lines(DOCUMENTS[:60]))
        memory.pipe_file("/corpus/b.jsonl.zst", corpus.zst(corpus.lines(DOCUMENTS[60:])))
        return corpus.options(folder, "memory://corpus/*.jsonl*", output_prefix="memory://data/out"), memory

    def test_a_dataset_is_made(self, tmp_path):
        of, memory = self._options(tmp_path)
        corpus.run(of)
        reference = corpus.reference(DOCUMENTS)
        assert tuple(memory.cat_file(f"/data/out_text_document.{suffix}") for suffix in ("bin", "idx")) == reference
        assert sorted(memory.find("/data")) == [
            "/data/out.preprocess.json",
            "/data/out_text_document.bin",
            "/data/out_text_document.idx",
        ]
        assert check_dataset("memory://data/out_text_document").documents == 120

    def test_a_run_goes_on(self, tmp_path):
        of, memory = self._options(tmp_path)
        with prepare_run(of) as run:
            make_shard(run.settings, run.pending[0])
        with prepare_run(of) as run:
            assert len(run.finished) == 1
            merge_if_complete(run, [make_shard(run.settings, chunk) for chunk in run.pending])
        assert memory.cat_file("/data/out_text_document.bin") == corpus.reference(DOCUMENTS)[0]

    def test_a_second_run_is_refused(self, tmp_path):
        of, _ = self._options(tmp_path)
        with prepare_run(of), pytest.raises(RunInProgress, match="held by process"), prepare_run(of):
            pass

    def test_a_lock_that_nobody_renews_is_taken(self, tmp_path):
        of, memory = self._options(tmp_path)
        memory.pipe_file("/data/out.shards/run-0.lock", b'{"host":"h","process":1,"started":5.0,"renewed":9.0}')
        assert corpus.run(of).documents == 120

    def test_a_run_whose_lock_another_run_took_ends_and_leaves_the_lock(self, tmp_path, caplog):
        of, memory = self._options(tmp_path)
        other = b'{"host":"h","process":1,"started":5.0,"renewed":9.0}'
        path = "/data/out.shards/run-0.lock"
        with prepare_run(of) as run:
            records = [make_shard(run.settings, chunk) for chunk in run.pending]
            run.lock.renew()
            run.lock.check()
            memory.pipe_file(path, other)
            with pytest.raises(RunInProgress, match="another run took the lock"):
                merge_if_complete(run, records)
            run.lock.renew()
        assert memory.cat_file(path) == other
        assert "lock_lost" in [record.message for record in caplog.records]

    def test_a_run_whose_lock_another_run_took_makes_no_further_shards(self, tmp_path):
        of, memory = self._options(tmp_path)
        with prepare_run(of) as run:
            memory.rm_file("/data/out.shards/run-0.lock")
            run.lock.renew()
            with pytest.raises(RunInProgress):
                run.lock.check()
        assert not memory.exists("/data/out.shards/run-0.lock")

    def test_a_glob_gives_files_and_no_folders(self, tmp_path):
        of, memory = self._options(tmp_path)
        memory.pipe_file("/corpus/dir.jsonl/y.jsonl", corpus.lines(["other"]))
        memory.pipe_file("/corpus/plain/y.jsonl", corpus.lines(["other"]))
        corpus.run(replace(of, inputs=("memory://corpus/*",)))
        assert memory.cat_file("/data/out_text_document.bin") == corpus.reference(DOCUMENTS)[0]


def test_an_end_that_the_vocabulary_lacks_is_refused(tmp_path):
    vocabulary = json.loads(corpus.tokenizer_json())
    vocabulary["added_tokens"] = []
    vocabulary["model"]["vocab"] = {
        token if token != "<|endoftext|>" else "<other>": number
        for token, number in vocabulary["model"]["vocab"].items()
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(["a"]))
    with pytest.raises(BadOption, match="no end-of-document token"):
        corpus.run(corpus.options(tmp_path, "a.jsonl"))


def test_a_lock_ends_with_its_block(tmp_path):
    path = str(tmp_path / "lock")
    for _ in range(2):
        with run_lock(path), pytest.raises(RunInProgress), run_lock(path):
            pass


def test_a_lock_that_cannot_be_renewed_is_logged_and_the_run_goes_on(caplog):
    lock = RunLock("nowhere://bucket/out.shards/run-0.lock", LockHolder("host", 1, 5.0, 9.0))
    lock.renew()
    lock.check()
    assert [record.message for record in caplog.records] == ["lock_not_renewed"]
