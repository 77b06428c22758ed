"""A dataset that does not fit together is named with what is wrong, and others' datasets are read."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.preprocess import corpus
from turnout.preprocess.dataset import Dataset, check_dataset
from turnout.preprocess.errors import BrokenDataset
from turnout.preprocess.indexed_dataset import dtype_for

IDS = [[5, 6, 7], [8], [9, 10]]


def dataset(folder: Path, ids=IDS, dtype: str = "<u2") -> str:
    content, index = corpus.ten_lines(list(map(str, range(len(ids)))), lambda text: ids[int(text)], None, dtype)
    (folder / "d.bin").write_bytes(content)
    (folder / "d.idx").write_bytes(index)
    return str(folder / "d")


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_a_good_dataset_is_summed_up(dtype, tmp_path):
    summary = check_dataset(dataset(tmp_path, dtype=dtype))
    assert (summary.documents, summary.sequences, summary.tokens, summary.highest_id) == (3, 3, 6, 10)
    assert (summary.shortest, summary.longest, summary.last_document) == (1, 3, (9, 10))
    assert f"6 of {np.dtype(dtype).name}" in summary.text()


def test_a_dataset_without_documents_is_good(tmp_path):
    assert check_dataset(dataset(tmp_path, ids=[])).documents == 0


def _flip(at: int, value: bytes):
    def change(folder: Path) -> None:
        content = bytearray((folder / "d.idx").read_bytes())
        content[at : at + len(value)] = value
        (folder / "d.idx").write_bytes(content)

    return change


def _cut(name: str, size: int):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-size])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda folder: (folder / "d.idx").unlink(), r"d\.idx: there is no such file", id="no index"),
        pytest.param(lambda folder: (folder / "d.bin").unlink(), r"d\.bin: there is no such file", id="no tokens"),
        pytest.param(_flip(0, b"TNTIDX\0\0"), "old dataset", id="the old format"),
        pytest.param(_flip(0, b"X"), "not an indexed dataset", id="another magic"),
        pytest.param(_flip(9, b"\2"), "version 2", id="another version"),
        pytest.param(_flip(17, b"\7"), "code 7", id="a dtype of no ids"),
        pytest.param(_flip(18, b"\4"), "4 sequences", id="another count of sequences"),
        pytest.param(_flip(26, b"\0"), "no entry", id="no documents' entries"),
        pytest.param(_flip(34, b"\4"), "begins at byte 6", id="a length that does not fit the offsets"),
        pytest.param(_flip(37, b"\x80"), "negative length", id="a negative length"),
        pytest.param(_flip(34 + 12 + 8, b"\7"), "begins at byte 7", id="an offset that does not fit"),
        pytest.param(_flip(34 + 36, b"\1"), "begins at sequence 1, not 0", id="a first document that is not the first"),
        pytest.param(_flip(34 + 36 + 8, b"\3"), "entries decrease", id="document entries that decrease"),
        pytest.param(_flip(34 + 36 + 24, b"\4"), "ends at sequence 4 of 3", id="documents beyond the sequences"),
        pytest.param(_cut("d.bin", 1), "11 bytes, its index describes 12", id="tokens cut off"),
        pytest.param(_cut("d.idx", 1), "101 bytes", id="an index cut off"),
        pytest.param(_cut("d.idx", 90), "shorter than the header", id="half a header"),
    ],
)
def test_a_broken_dataset_is_named(change, message, tmp_path):
    prefix = dataset(tmp_path)
    change(tmp_path)
    with pytest.raises(BrokenDataset, match=message):
        check_dataset(prefix)


def test_modes_behind_the_documents_are_allowed(tmp_path):
    """Multimodal datasets have a byte for each sequence at the end."""
    prefix = dataset(tmp_path)
    with open(f"{prefix}.idx", "ab") as file:
        file.write(bytes(3))
    assert check_dataset(prefix).documents == 3


@pytest.mark.contract("DL-77")
@pytest.mark.parametrize(
    ("vocabulary", "name"),
    [
        pytest.param(65_499, "uint16", id="the last that fits uint16, by Megatron's rule"),
        pytest.param(65_500, "int32", id="the first that does not"),
    ],
)
def test_the_dtype_follows_the_vocabulary(vocabulary, name):
    assert dtype_for(vocabulary).name == name


def test_a_sequence_is_read_by_its_number(tmp_path):
    theirs = Dataset(dataset(tmp_path))
    assert [theirs[number].tolist() for number in range(len(theirs))] == IDS


def test_the_index_has_the_size_that_the_format_says(tmp_path):
    prefix = dataset(tmp_path)
    assert Path(f"{prefix}.idx").stat().st_size == 42 + 20 * 3
    assert struct.unpack_from("<9sQBQQ", Path(f"{prefix}.idx").read_bytes()) == (b"MMIDIDX\0\0", 1, 8, 3, 4)
