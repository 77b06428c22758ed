"""datatrove reads our tokens, and we read the datasets of its Megatron writer."""

from __future__ import annotations

import pytest

from tests.preprocess import corpus
from turnout.preprocess.dataset import Dataset, check_dataset

IDS = [[5, 6, 7], [8], [9, 10]]


@pytest.mark.parametrize(("token_bytes", "dtype"), [pytest.param(2, "uint16"), pytest.param(4, "int32")])
def test_we_read_what_datatrove_writes(token_bytes, dtype, tmp_path):
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile

    theirs = MegatronTokenizedFile(str(tmp_path), "theirs", token_size=token_bytes)
    for ids in IDS:
        theirs.write(ids)
    theirs.close()
    dataset = Dataset(str(tmp_path / "theirs"))
    assert [dataset[number].tolist() for number in range(len(dataset))] == IDS
    assert (check_dataset(str(tmp_path / "theirs")).dtype, check_dataset(str(tmp_path / "theirs")).documents) == (
        dtype,
        3,
    )


def test_datatrove_reads_what_we_write(tmp_path):
    from datatrove.utils.dataset import DatatroveFileDataset

    documents = corpus.texts(50)
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(documents))
    of = corpus.options(tmp_path, "a.jsonl")
    corpus.run(of)
    ours = Dataset(f"{of.output_prefix}_text_document")
    tokens = [token for number in range(len(ours)) for token in ours[number].tolist()]
    theirs = DatatroveFileDataset(ours.bin_path, seq_len=15, token_size=2)
    windows = [theirs[number]["input_ids"].tolist() for number in range(len(theirs))]
    assert [token for window in windows for token in window] == tokens[: 16 * (len(tokens) // 16)]


def test_the_same_documents_give_the_same_files(tmp_path):
    """The tokens of our run, written by datatrove, are the files of our run."""
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronTokenizedFile

    (tmp_path / "a.jsonl").write_bytes(corpus.lines(corpus.texts(50)))
    of = corpus.options(tmp_path, "a.jsonl")
    corpus.run(of)
    ours = Dataset(f"{of.output_prefix}_text_document")
    theirs = MegatronTokenizedFile(str(tmp_path), "theirs", token_size=2)
    for number in range(len(ours)):
        theirs.write(ours[number].tolist())
    theirs.close()
    assert tuple((tmp_path / f"theirs.{suffix}").read_bytes() for suffix in ("bin", "idx")) == corpus.output(of)
