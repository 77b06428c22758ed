"""Accelerate's and Lightning's own loops on a tiny model, each step saved in memory and every fourth in storage."""

import pytest

NAMES = pytest.mark.parametrize("name", ["accelerate", "lightning"])


pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def trained(runs):
    return runs("trains_loops.py")


@NAMES
@pytest.mark.parametrize(
    ("source", "began"),
    [
        pytest.param("memory", 6, id="killed in the seventh step, it goes on from the sixth, which memory has"),
        pytest.param("stored", 4, id="without its memory it goes on from the fourth"),
    ],
)
def test_a_killed_training_ends_as_if_nothing_had_been(trained, name, source, began):
    assert trained[f"{name}-killed"] == {"ended": -9}, trained["errors"]
    found, undisturbed = trained[f"{name}-{source}"], trained[f"{name}-undisturbed"]
    assert (undisturbed["began"], found["began"]) == (0, began), trained["errors"]
    for what in ("step", "state", "dice"):
        assert found[what] == undisturbed[what], what


@NAMES
def test_steps_go_to_storage_when_due_and_memory_when_the_process_dies(trained, name):
    stored = ["step-0000000004", "step-0000000008"]
    last = ["step-0000000010"] if name == "lightning" else []  # which knows what its last step is
    assert trained[f"{name}-undisturbed"]["files"] == [*stored, *last]
    assert trained[f"{name}-memory"]["files"] == ["step-0000000004", "step-0000000006", "step-0000000008", *last]


def test_lightning_writes_no_files_of_its_own(trained):
    assert trained["lightning-undisturbed"]["written"] == []


def test_models_are_saved_by_their_names_and_what_was_not_saved_is_told(trained):
    assert trained["accelerate-other"]["same"], trained["errors"]
    assert "step 1 has no custom_0: prepare and register what was saved" in trained["accelerate-other"]["why"]


@NAMES
def test_the_example_of_the_page_runs(trained, name):
    assert trained[f"{name}-page"]["files"] == ["step-0000000003"], trained["errors"]
