"""DeepSpeed's own engine over gloo, three steps saved and three more: ZeRO 1 and 3 of one rank, ZeRO 2 of two."""

import itertools

import pytest
from safetensors import safe_open

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def trained(runs):
    return runs("trains_deepspeed.py")


def test_nothing_is_stored(trained):  # DL-63
    assert (trained["zero1"]["began"], trained["zero1"]["path"]) == (0, None)


@pytest.mark.contract("DL-63")
@pytest.mark.parametrize(
    ("first", "second_world", "path"),
    [
        pytest.param("zero1", "zero1-again", "zero1/global_step3/mp_rank_00_model_states.pt", id="ZeRO 1, from memory"),
        pytest.param(
            "zero3", "zero3-again", "zero3/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt",
            id="ZeRO 3, from memory",
        ),
        pytest.param("two", "two-again", "two/global_step3/mp_rank_00_model_states.pt", id="ZeRO 2, from storage"),
        pytest.param("two-1", "two-again-1", "two/global_step3/mp_rank_00_model_states.pt", id="its second rank"),
    ],
)  # fmt: skip
def test_a_killed_training_ends_as_if_nothing_had_been(trained, first, second_world, path):  # DL-63
    found = trained[second_world]
    assert (found["began"], found["client"], found["path"]) == (3, 1, path), trained["errors"]
    assert (found["state"], found["dice"]) == (trained[first]["state"], trained[first]["dice"])


def test_a_save_to_memory_leaves_no_file_and_the_engine_as_it_was(trained):  # DL-63
    assert trained["zero1"]["files"] == []
    assert all(each["same"] for name, each in trained.items() if name.startswith(("zero", "two")))


def test_what_ranks_have_alike_is_in_storage_once(trained):  # DL-63
    shards = sorted(trained["home"].rglob("two/**/*.safetensors"))
    keys = []
    for shard in shards:
        with safe_open(shard, "np") as opened:
            keys.append({key for key in opened.keys() if "_states.pt" in key})  # noqa: SIM118 - it is no dict
    assert len(keys) == 2
    assert all(keys)
    assert all(not one & other for one, other in itertools.combinations(keys, 2))
    assert len([key for key in set.union(*keys) if "model_states" in key and "0.weight" in key]) == 1


def test_the_example_of_the_page_runs(trained):  # DL-63
    assert trained["page"] == {"step": 3}, trained["errors"]
