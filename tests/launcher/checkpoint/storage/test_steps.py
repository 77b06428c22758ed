"""Which steps are committed, by which round, what is kept of them, and what is told of the others."""

from itertools import islice

import pytest

from tests.launcher.checkpoint.storage.world import NOW_S, RUN, Said, commit, region, round_of_step, save, save_all
from turnout.launcher.checkpoint.daemon.persist import Commit, pauses
from turnout.launcher.checkpoint.format.manifest import All, Every, Latest
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps
from turnout.launcher.checkpoint.storage.posix_store import PosixStore, open_store
from turnout.launcher.checkpoint.storage.shard_writer import ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, load, manifest_of, newest_manifest
from turnout.launcher.errors import BadCheckpoint, StorageFailed


@pytest.fixture
def store(folder):
    return PosixStore(folder)


def names(store, step):
    return sorted(file.name for file in (store.path / f"step-{step:010}").iterdir())


def test_a_step_is_its_shards_their_notes_and_a_manifest(store):
    manifest = save_all(store, 10)
    assert names(store, 10) == [
        "manifest.json", "rank-00000.json", "rank-00000.safetensors", "rank-00001.json", "rank-00001.safetensors",
    ]  # fmt: skip
    assert (manifest.run, manifest.step, manifest.round, manifest.world, manifest.saved_s) == (RUN, 10, 1, 2, NOW_S)
    assert (newest_manifest(store, Said()), round_of_step(store, 10)) == (manifest, 1)


def test_a_step_is_committed_when_the_last_note_is_there_and_not_before(store):
    look = Commit(store, RUN, 10, 1, 3, Said())
    assert (look.try_commit(), look.missing_ranks()) == (None, (0, 1, 2))
    save(store, 10, 2, world=3)
    save(store, 10, 0, world=3)
    assert (look.try_commit(), look.missing_ranks()) == (None, (1,))
    assert committed_steps(store, Said()) == ()
    save(store, 10, 1, world=3, saved_s=NOW_S + 5)
    assert look.try_commit().saved_s == NOW_S + 5
    assert round_of_step(store, 10) == 1


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param({"round_": 1}, id="of the round before"),
        pytest.param({"world": 4}, id="of a larger world"),
        pytest.param({"run": "other"}, id="of another run, though round and world are the same"),
    ],
)
def test_a_note_makes_no_other_world_s_step_complete(store, stranger):
    save(store, 10, 0, **{"round_": 2} | stranger)
    save(store, 10, 1, round_=2)
    look = Commit(store, RUN, 10, 2, 2, Said())
    assert [look.try_commit() for _ in range(3)] == [None] * 3
    save(store, 10, 0, round_=2)
    assert look.try_commit()
    assert round_of_step(store, 10) == 2


def test_a_note_without_its_shard_is_told_once_and_another_is_waited_for(store):
    save(store, 10, 0)
    save(store, 10, 1)
    (store.path / "step-0000000010" / "rank-00001.safetensors").unlink()
    messages = Said()
    look = Commit(store, RUN, 10, 1, 2, messages)
    assert [look.try_commit() for _ in range(20)] == [None] * 20
    assert messages.words() == ["note_passed_over"]
    save(store, 10, 1)
    assert [bool(look.try_commit()) for _ in range(8)][-1]
    assert round_of_step(store, 10) == 1


def test_looks_come_soon_and_then_once_a_second():
    assert list(islice(pauses(), 7)) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_saving_a_step_again_replaces_nothing_before_its_manifest_is_there(store):
    save_all(store, 10)
    before = manifest_of(store, 10)
    save(store, 10, 0, round_=2)
    assert (round_of_step(store, 10), manifest_of(store, 10)) == (1, before)
    save(store, 10, 1, round_=2)
    assert (round_of_step(store, 10), manifest_of(store, 10)) == (1, before)
    assert commit(store, 10, round_=2)
    assert round_of_step(store, 10) == 2
    for rank in (0, 1):  # one who has read the old manifest still finds what it names
        assert load(store, before, rank) == region(10, rank, 1)


def test_saving_a_step_again_in_a_smaller_world(store):
    save_all(store, 10, world=4)
    save_all(store, 10, world=2, round_=2)
    assert (manifest_of(store, 10).world, round_of_step(store, 10)) == (2, 2)


def test_one_of_a_round_that_is_over_undoes_nothing_of_a_later_one(store):
    save(store, 10, 0)
    save(store, 10, 1)
    late = Commit(store, RUN, 10, 1, 2, Said())
    save_all(store, 10, round_=2)
    with pytest.raises(StorageFailed, match="round 2 since round 1"):
        save(store, 10, 0, round_=1)
    assert late.try_commit() is None
    assert round_of_step(store, 10) == 2


def test_a_manifest_of_a_later_round_stays(store):
    save_all(store, 10, round_=2)
    for rank in (0, 1):
        (store.path / "step-0000000010" / f"rank-{rank:05}.json").unlink()
        save(store, 10, rank, round_=1)
    assert commit(store, 10, round_=1).round == 2
    assert round_of_step(store, 10) == 2


def test_another_run_may_save_a_step_again_whatever_its_round(store):
    save_all(store, 10, round_=5)
    for rank in (0, 1):
        save(store, 10, rank, run="again")
    assert commit(store, 10, run="again").run == "again"
    assert round_of_step(store, 10) == 1


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        pytest.param(All(), (10, 20, 25, 30, 40), id="all, which is the default: old checkpoints are the user's"),
        pytest.param(Latest(2), (30, 40), id="the two newest"),
        pytest.param(Latest(1), (40,), id="the newest"),
        pytest.param(Every(20), (20, 40), id="every so many steps"),
        pytest.param(Every(7), (40,), id="the newest, whatever the interval"),
    ],
)
def test_steps_that_are_not_to_be_kept_are_removed(store, keep, stay):
    for step in (10, 20, 25, 30, 40):
        save_all(store, step)
    messages = Said()
    removed_steps = remove_old_steps(store, keep, messages)
    assert (committed_steps(store, Said()), store.steps()) == (stay, stay)
    assert sorted((*removed_steps, *stay)) == [10, 20, 25, 30, 40]
    assert messages.steps("checkpoint_removed") == [*removed_steps]


def test_a_step_that_is_broken_does_not_count_as_kept(store):
    for step in (10, 20, 30):
        save_all(store, step)
    (store.path / "step-0000000030" / "rank-00001.safetensors").write_bytes(b"")
    assert remove_old_steps(store, Latest(1), Said()) == (10,)
    assert (round_of_step(store, 20), store.steps()) == (1, (20, 30))


def test_a_step_that_is_read_or_was_just_committed_stays(store):
    for step in (10, 20, 30, 40):
        save_all(store, step)
    assert remove_old_steps(store, Latest(1), Said(), reading=frozenset([10]), just_committed=20) == (30,)
    assert committed_steps(store, Said()) == (10, 20, 40)


def test_removing_a_step_leaves_what_another_round_is_saving_of_it(store):
    save_all(store, 10)
    save_all(store, 20)
    save(store, 10, 1, round_=2)
    assert remove_old_steps(store, Latest(1), Said()) == (10,)
    assert names(store, 10) == ["rank-00001.2.safetensors", "rank-00001.json"]
    save(store, 10, 0, round_=2)
    assert commit(store, 10, round_=2)
    assert round_of_step(store, 10) == 2


def test_a_newest_step_that_is_not_whole_is_told_and_the_next_is_given(store):
    for step in (10, 20, 30):
        save_all(store, step)
    save(store, 40, 0)
    (store.path / "step-0000000030" / "manifest.json").write_text("{}")
    messages = Said()
    assert newest_manifest(store, messages).step == 20
    assert messages.steps("checkpoint_passed_over") == [40, 30]
    assert next(fields["why"] for _, fields in messages.all) == "step 40 is not committed"


def test_storage_that_gives_none_of_its_steps_has_failed_and_is_not_empty(folder):
    save_all(PosixStore(folder), 10)
    (folder / "step-0000000010").rename(folder / "elsewhere")
    (folder / "step-0000000010").symlink_to(folder / "elsewhere")
    messages = Said()
    with pytest.raises(StorageFailed, match="step 10"):
        newest_manifest(PosixStore(folder), messages)
    assert messages.steps("checkpoint_passed_over") == [10]


def test_names_that_are_no_steps_are_none(store):
    save_all(store, 10)
    for name in ("step-10", "step-00000000011", "step-0000000012.tmp", "latest", "step-9999999999999999999"):
        (store.path / name).mkdir()
    assert store.steps() == (10,)


@pytest.mark.parametrize("target", ["{}", "file://{}"])
def test_a_path_is_a_folder_which_is_made_with_those_above_it(folder, target):
    store = open_store(target.format(folder / "a" / "b c"))
    store.prepare()
    store.prepare()
    save_all(store, 10)
    assert round_of_step(PosixStore(folder / "a" / "b c"), 10) == 1


def test_a_region_whose_head_is_not_the_one_that_was_told_is_not_saved(store):
    octets = memoryview(region(10, 0))
    with pytest.raises(BadCheckpoint, match="head of 4096 bytes, not 8192"):
        persist(store, ShardWrite(RUN, 10, 1, 0, 1, 8_192), octets, sums_of(octets), NOW_S)
    assert store.steps() == ()


def test_sums_of_fewer_chunks_are_refused(store):
    octets = memoryview(region(10, 0))
    with pytest.raises(BadCheckpoint, match="checksums of 64 bits"):
        persist(store, ShardWrite(RUN, 10, 1, 0, 1, 4_096), octets, [], NOW_S)
    assert store.steps() == ()
