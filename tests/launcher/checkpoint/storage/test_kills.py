"""Writers that are killed: a reader finds a whole committed step, and the next writer clears up behind them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.checkpoint.storage.world import NOW_S, Said, commit, round_of_step, save, save_all
from turnout.launcher.checkpoint.storage.garbage_collection import sweep
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, newest_manifest
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.slow

CRASHES = Path(__file__).with_name("crashes.py")
CROWD = Path(__file__).with_name("crowd.py")
ROUND = 7


def run(*words):
    return subprocess.run([sys.executable, CRASHES, *words], capture_output=True, text=True, timeout=200)


def test_a_kill_between_two_system_calls_keeps_commits_and_is_swept_away(folder):
    ended = run("points", str(folder))
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 120


@pytest.mark.parametrize("seed", ["7", "8"])
def test_a_kill_at_any_moment_leaves_what_was_committed(folder, seed):
    ended = run("times", str(folder), seed)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == 60


def test_ranks_that_save_while_the_first_clears_up_lose_nothing(folder):
    world, last = 3, 12
    command = (sys.executable, CROWD, folder)
    ranks = [subprocess.Popen((*command, *map(str, (rank, world, last)))) for rank in range(world)]
    try:
        while any(each.poll() is None for each in ranks):
            look_once(folder)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert [each.returncode for each in ranks] == [0] * world
    assert committed_steps(PosixStore(folder), Said()) == (9, 10, 11, 12)
    assert look_once(folder) == 12


def look_once(folder):
    """A reader beside them: the newest step is whole, unless it was removed meanwhile. Gives it."""
    found = newest_manifest(PosixStore(folder), Said())
    try:
        return found and round_of_step(PosixStore(folder), found.step) and found.step
    except BadCheckpoint:
        assert newest_manifest(PosixStore(folder), Said()).step > found.step
        return None


BOOT, OTHER = "a1b2c3d4", "99999999"


def left(path, name, boot=BOOT, round_=ROUND):
    """Leave what a killed writer leaves of an unfinished step."""
    file = path / "step-0000000010" / f".{name}.{round_}.{boot}.{'0' * 16}.tmp"
    file.write_bytes(b"half")
    return file


@pytest.mark.parametrize(
    ("name", "boot", "round_", "now", "goes"),
    [
        pytest.param("rank-00003.safetensors", BOOT, ROUND, 0, False, id="a young one may be written this moment"),
        pytest.param("rank-00003.safetensors", BOOT, ROUND, 3_700, True, id="an old one is nobody's"),
        pytest.param("rank-00003.safetensors", OTHER, ROUND, 0, True, id="of our rank, before this host was started"),
        pytest.param("rank-00003.safetensors", BOOT, ROUND - 1, 0, True, id="of our rank, in another round"),
        pytest.param("rank-00003.json", BOOT, ROUND - 1, 0, True, id="a note of our rank, in another round"),
        pytest.param(
            "rank-00004.safetensors", OTHER, ROUND, 0, False, id="of a rank of another host, which boots alone"
        ),
        pytest.param("rank-00004.safetensors", OTHER, ROUND - 1, 3_700, True, id="of another host, but old"),
        pytest.param("manifest.json", OTHER, ROUND - 1, 0, False, id="a young manifest of another host"),
        pytest.param("manifest.json", OTHER, ROUND - 1, 3_700, True, id="an old manifest"),
    ],
)
def test_of_files_in_the_making_those_go_whose_writer_is_gone(folder, name, boot, round_, now, goes):
    store, messages = PosixStore(folder, boot=BOOT), Said()
    save_all(store, 10)
    file = left(folder, name, boot, round_)
    removed_files = sweep(store, file.stat().st_mtime + now, messages, 3_600, {3: ROUND})
    assert (removed_files, file.exists()) == (((file.name,), False) if goes else ((), True))
    assert messages.words() == ["leftover_removed"] * goes
    assert round_of_step(store, 10) == 1


def test_what_this_process_is_writing_is_never_swept(folder):
    swept = []
    store = PosixStore(folder, failpoint=lambda place: swept.extend(sweep(store, NOW_S * 2, Said(), 1, {0: 2})))
    save_all(store, 10)
    assert swept == []
    assert round_of_step(store, 10) == 1


def test_a_stranger_s_files_stay(folder):
    store = PosixStore(folder)
    save_all(store, 10)
    save_all(store, 20)
    strangers = [folder / "step-0000000010" / name for name in ("README", ".hidden.tmp", "rank-1.safetensors")]
    strangers += [folder / "notes.txt"]
    for file in strangers:
        file.write_text("mine")
    assert sweep(store, NOW_S * 2, Said(), 1) == ()
    assert [file.read_text() for file in strangers] == ["mine"] * 4


def test_a_step_that_came_to_nothing_goes_once_old_and_a_newer_is_there(folder):
    store, messages = PosixStore(folder), Said()
    save(store, 20, 1)
    assert sweep(store, NOW_S * 2, messages, 1) == (), "it may be all there is"
    save_all(store, 30)
    save(store, 40, 1)
    assert sweep(store, 0, messages, 1) == (), "it may be on its way"
    assert sweep(store, NOW_S * 2, messages, 1) == ("rank-00001.json", "rank-00001.safetensors")
    assert messages.steps("leftover_removed") == [20, 20]
    assert store.steps() == (30, 40)


@pytest.mark.parametrize("harm", [lambda file: file.write_text("{"), lambda file: file.symlink_to("elsewhere")])
def test_a_step_whose_manifest_is_broken_is_left_to_a_person(folder, harm):
    store = PosixStore(folder)
    save_all(store, 10)
    save_all(store, 20)
    (folder / "step-0000000010" / "manifest.json").unlink()
    harm(folder / "step-0000000010" / "manifest.json")
    assert sweep(store, NOW_S * 2, Said(), 1) == ()


def test_a_shard_that_was_outrun_goes_and_one_that_is_on_its_way_stays(folder):
    store = PosixStore(folder)
    save_all(store, 10)
    save_all(store, 10, round_=2)
    save(store, 10, 0, round_=3)
    assert sweep(store, NOW_S * 2, Said(), 1) == ("rank-00000.safetensors", "rank-00001.safetensors")
    assert round_of_step(store, 10) == 2
    save(store, 10, 1, round_=3)
    assert commit(store, 10, round_=3)
    assert round_of_step(store, 10) == 3


def test_a_folder_in_which_nothing_was_saved_holds_nothing(folder):
    assert newest_manifest(PosixStore(folder), Said()) is None
    assert committed_steps(PosixStore(folder), Said()) == ()
