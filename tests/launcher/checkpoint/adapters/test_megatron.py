"""Megatron's training script with one line changed, its import: versions of Megatron-LM, and the real megatron-core."""

import pytest

from turnout.launcher.torch_version import counts_operations, too_old_megatron_message

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(runs):
    return runs("trains_megatron.py")


@pytest.mark.contract("DL-61")
@pytest.mark.parametrize(
    ("version", "takes", "counts"),
    [
        pytest.param("0.3.0", False, False, id="0.3 is too old"),
        pytest.param("0.4.0", True, False, id="0.4 has no count of operations"),
        pytest.param("0.5.0", True, True, id="0.5 has one"),
        pytest.param("0.10.0rc1", True, True, id="numbers are no words: 0.10 is newer than 0.4"),
        pytest.param("0.16.1", True, True, id="megatron-core of today"),
        pytest.param("1.0.0", True, True, id="and of some day"),
        pytest.param("git-1234", True, True, id="a build of somebody's own passes"),
    ],
)
def test_which_versions_are_taken(version, takes, counts):  # DL-61, DL-62
    assert (too_old_megatron_message(version) is None, counts_operations(version)) == (takes, counts)


@pytest.mark.contract("DL-61")
def test_a_version_that_is_too_old_is_told(trained):  # DL-61
    assert "0.3.0 is too old: 0.4.0 or newer is needed" in trained["0.3.0"]["told"]


@pytest.mark.contract("DL-57", "DL-58", "DL-59", "DL-62")
@pytest.mark.parametrize(
    ("version", "counted"),
    [
        pytest.param("0.4.0", (0, 0), id="0.4, which passes 0 and ignores what comes back"),
        pytest.param("0.5.0", (300, 500), id="0.5, which counts operations"),
        pytest.param("0.12.1", (300, 500), id="0.12, laid out anew, with a distributed optimizer"),
    ],
)
def test_the_training_script_runs_with_its_import_line_changed(trained, version, counted):  # DL-57, DL-58, DL-59, DL-62
    first, memory, storage = (trained[f"{version} {name}"] for name in ("first", "memory", "storage"))
    assert (first["began"], first["files"]) == ([0, 0, 0], []), trained["errors"]
    assert memory["began"] == [3, counted[0], 6]
    assert memory["updated"] == [6]
    assert {"step-0000000004", "step-0000000005"} <= set(memory["files"])
    assert storage["began"] == [5, counted[1], 10]
    for each in (memory, storage):
        assert (each["state"], each["steps"]) == (trained["undisturbed"]["state"], 5)


@pytest.mark.contract("DL-57", "DL-58", "DL-59", "DL-62", "DL-63")
@pytest.mark.parametrize(
    ("first", "second_layout"),
    [
        pytest.param("core", "core again", id="one rank, from memory"),
        pytest.param("tensor", "tensor again", id="two ranks of tensor parallelism, from storage: the first"),
        pytest.param("tensor-1", "tensor again-1", id="the second"),
    ],
)
def test_a_model_of_megatron_core_goes_on_where_it_was(trained, first, second_layout):  # DL-57, DL-61
    assert trained[first]["began"] == [0, 0], trained["errors"]
    assert trained[second_layout]["began"] == [3, 300]
    assert trained[second_layout]["state"] == trained[first]["state"]


def test_data_parallel_ranks_may_become_fewer(trained):  # DL-57
    assert trained["data"]["trained"] == trained["data-1"]["trained"], trained["errors"]
    assert trained["data alone"]["began"] == [3, 300]
    assert trained["data alone"]["trained"] == trained["data"]["trained"]


@pytest.mark.contract("DL-57", "DL-58", "DL-59", "DL-62")
def test_another_grid_is_told(trained):  # DL-57
    assert "(2, 1, 1) when saved, (1, 1, 1) now" in trained["tensor alone"]["told"]


@pytest.mark.parametrize("library", ["transformers", "deepspeed"])
def test_a_library_that_is_not_there_is_told_with_what_installs_it(trained, library):  # DL-63
    assert "is not there: pip install 'turnout[launcher,adapters]'" in trained[f"no {library}"]["told"]
    assert trained[f"no {library}"]["told"].startswith(library)


def test_the_example_of_the_page_runs(trained):  # DL-63
    assert trained["page"] == {"first": [2, 200], "again": [2, 200]}, trained["errors"]
