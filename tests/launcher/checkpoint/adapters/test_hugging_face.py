"""transformers' own Trainer, on a tiny model, saved every two steps in memory and every four in storage."""

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(runs):
    return runs("trains_hugging_face.py")


def test_steps_of_storage_and_the_last_one_go_there(trained):  # DL-63
    assert trained["undisturbed"]["files"] == ["step-0000000004", "step-0000000008", "step-0000000010"]
    assert trained["undisturbed"]["began"] == 0


@pytest.mark.contract("DL-63")
@pytest.mark.parametrize(
    ("name", "began"),
    [
        pytest.param("from_memory", 6, id="killed in the seventh step, it goes on from the sixth, which memory has"),
        pytest.param("from_storage", 4, id="without its memory it goes on from the fourth, in the midst of data"),
    ],
)
def test_a_killed_training_ends_as_if_nothing_had_been(trained, name, began):  # DL-63
    assert trained["killed"] == {"ended": -9}
    found, undisturbed = trained[name], trained["undisturbed"]
    assert found["began"] == began, trained["errors"]
    for what in ("step", "state", "dice", "tied", "logged"):
        assert found[what] == undisturbed[what], what


def test_what_was_only_in_memory_goes_to_storage_when_its_process_dies(trained):  # DL-48, DL-63
    assert "step-0000000006" in trained["from_memory"]["files"]


def test_the_example_of_the_page_runs(trained):  # DL-63
    found = trained["page"]
    assert (found["step"], found["files"]) == (3, ["step-0000000003"]), trained["errors"]


def test_a_save_and_an_evaluation_are_no_steps_to_whoever_watches(trained):
    """Two saves, after the second and the third step, and an evaluation; each phase begins and ends."""
    assert trained["page"]["watched"] == {"turns": [4, 6], "phase": ""}
