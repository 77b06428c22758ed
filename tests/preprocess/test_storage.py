"""A file on disk or on object storage appears whole or not at all, and its first writer may keep it."""

from __future__ import annotations

from contextlib import suppress

import fsspec
import pytest

from turnout.preprocess import storage


def test_a_file_that_fails_to_be_written_does_not_appear():
    with suppress(ValueError), storage.atomic_file("memory://failing/x") as file:
        file.write(b"half")
        raise ValueError("midway")
    assert not fsspec.filesystem("memory").exists("/failing/x")


def test_a_file_that_fails_to_be_replaced_keeps_its_content(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with suppress(ValueError), storage.atomic_file(f"file://{tmp_path}/x") as file:
        file.write(b"half")
        raise ValueError("midway")
    assert (tmp_path / "x").read_bytes() == b"old"


@pytest.mark.parametrize("prefix", [pytest.param("", id="on a disk"), pytest.param("file://", id="by a URL")])
def test_a_file_that_is_written_once_keeps_its_first_content(prefix, tmp_path):
    path = f"{prefix}{tmp_path}/plan.json"
    storage.write_once(path, b"first")
    storage.write_once(path, b"second")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert storage.read_bytes(path) == b"first"
