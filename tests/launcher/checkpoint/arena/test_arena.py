"""An arena: what is saved in turns, read back, pinned and hashed, who may write, and what memory it takes."""

import gc
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.launcher.checkpoint.arena.arena import Arena, ArenaBusy
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.format.arena_layout import (
    PAGE_BYTES,
    STATE,
    Identity,
    ShardRecord,
    SlotState,
    newest_generation,
    table_at,
)
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sums_of
from turnout.launcher.errors import BadCheckpoint, NoMemory

ROOT = Path(__file__).resolve().parents[4]


def identity(worker="w-0", run="run", local_rank=0, boot=None, count=3):
    return Identity(run, worker, local_rank, boot or boot_id(), count)


def record(step, data_bytes=100_000):
    return ShardRecord(0, step, 1, 0, 1, PAGE_BYTES, data_bytes)


def save(arena, step, data_bytes=100_000):
    """Fill a generation with the step's number, and seal it. Gives the generation."""
    saved = record(step, data_bytes)
    generation = arena.begin(saved)
    arena.map(generation, saved.shard_bytes)[:] = bytes([step]) * saved.shard_bytes
    arena.seal(generation, saved)
    return generation


def load(arena):
    """The newest step, with its bytes."""
    slots = arena.slots()
    found = newest_generation(slots)
    if found is None:
        return None
    saved = slots[found].record
    assert bytes(arena.map(found, saved.shard_bytes)) == bytes([saved.step]) * saved.shard_bytes
    return saved.step


@pytest.fixture
def folder():
    """A folder in memory, with nothing else in it."""
    path = Path("/dev/shm") / f"arenas-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    yield path
    gc.collect()
    shutil.rmtree(path)


@pytest.fixture
def arena(folder):
    new_arena = Arena.make(folder, identity())
    yield new_arena
    new_arena.close()


def child(code, *words, before=(), **options):
    """A process of its own that runs this code; `words` are its arguments."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", f"import sys, os\n{code}", *map(str, words)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_steps_are_saved_in_turns_and_each_is_the_newest_once_it_is_sealed(arena):
    assert load(arena) is None
    assert [(save(arena, step), load(arena)) for step in range(1, 6)] == [(0, 1), (1, 2), (2, 3), (0, 4), (1, 5)]


def test_what_was_sealed_is_there_for_whoever_opens_the_file_later(arena):
    save(arena, 7)
    other = Arena.open(arena.path)
    assert load(other) == 7
    assert other.identity == identity()
    other.close()


def test_the_layout_may_change_from_save_to_save(arena):
    sizes = [1, 5_000_000, 100, 0, 9_000_001, PAGE_BYTES, 6_000_000]
    for step, size in enumerate(sizes, 1):
        save(arena, step, size)
        assert load(arena) == step
        newest_slot = arena.slots()[newest_generation(arena.slots())]
        assert (newest_slot.record.data_bytes, newest_slot.reserved_bytes >= newest_slot.record.region_bytes) == (
            size,
            True,
        )


def test_a_generation_that_is_begun_shows_nothing_until_it_is_sealed(arena):
    for step in (1, 2, 3):
        save(arena, step)
    generation = arena.begin(record(4))
    slot = arena.slots()[generation]
    assert (slot.state, slot.record, load(arena)) == (SlotState.WRITING, None, 3)


def test_a_generation_whose_writer_was_killed_stays_void_in_any_state(arena):
    for step in (1, 2, 3):
        save(arena, step)
    generation = arena.begin(record(4))
    with arena.path.open("r+b") as file:
        file.seek(table_at(generation) + 8 * STATE)
        file.write(SlotState.SEALED.to_bytes(8, "little"))
    assert "does not have the sum" in arena.slots()[generation].fault
    assert load(arena) == 3


def test_a_save_that_failed_is_discarded_and_the_ones_before_stay(arena):
    save(arena, 1)
    generation = arena.begin(record(2))
    arena.discard(generation)
    assert arena.slots()[generation].state is SlotState.EMPTY
    with pytest.raises(ValueError, match="not being filled"):
        arena.seal(generation, record(2))
    assert (load(arena), save(arena, 3), load(arena)) == (1, generation, 3)


def test_two_saves_in_flight_fill_two_generations_and_the_last_is_newest(arena):
    save(arena, 1)
    first, second = arena.begin(record(2)), arena.begin(record(3))
    assert {first, second} == {1, 2}
    for generation, step in ((second, 3), (first, 2)):
        arena.map(generation, record(step).shard_bytes)[:] = bytes([step]) * record(step).shard_bytes
        arena.seal(generation, record(step))
        assert load(arena) == 3


def test_a_pinned_generation_is_not_taken(arena):
    for step in (1, 2, 3):
        save(arena, step)
    assert arena.pin(0).step == 1
    assert [save(arena, step) for step in (4, 5, 6)] == [1, 2, 1]
    assert arena.slots()[0].record.step == 1
    arena.unpin(0)
    assert save(arena, 7) == 0


def test_a_daemon_that_pins_a_generation_just_as_it_is_taken_keeps_it(arena):
    for step in (1, 2, 3):
        save(arena, step)

    class PinnedMeanwhile(ShardRecord):
        @property
        def region_bytes(self):  # is asked for by begin() when the oldest generation is chosen, and not yet taken
            if has_asked and not arena.slots()[0].pinned:
                arena.pin(0)
            return super().region_bytes

    has_asked = False
    late = PinnedMeanwhile(0, 4, 1, 0, 1, PAGE_BYTES, 100_000)
    has_asked = True
    assert arena.begin(late) == 1
    assert (arena.slots()[0].pinned, arena.slots()[0].record.step) == (True, 1)


def test_a_pin_counts_its_readers_and_a_new_daemon_frees_old_pins(arena):
    save(arena, 1)
    assert [arena.pin(0).step, arena.pin(0).step] == [1, 1]
    arena.unpin(0)
    assert arena.slots()[0].pinned
    arena.unpin_all()
    arena.unpin(0)
    assert not arena.slots()[0].pinned


@pytest.mark.parametrize(
    ("generation", "epoch", "pinned"),
    [
        pytest.param(0, None, True, id="whatever it holds"),
        pytest.param(0, 1, True, id="what was told"),
        pytest.param(0, 2, False, id="another save has been there since"),
        pytest.param(1, None, False, id="it is being written"),
        pytest.param(2, None, False, id="it holds nothing"),
    ],
)
def test_only_what_is_sealed_can_be_pinned(arena, generation, epoch, pinned):
    save(arena, 1)
    arena.begin(record(2))
    assert (arena.pin(generation, epoch) is not None) == pinned
    assert arena.slots()[generation].pinned == pinned


def test_the_newest_generation_that_matches_is_pinned(arena):
    for step in (7, 7, 5):
        save(arena, step)
    generation, found = arena.pin_newest(lambda each: each.step == 7)
    assert (generation, found.step, found.epoch) == (1, 7, 2)
    assert [slot.pinned for slot in arena.slots()] == [False, True, False]
    assert arena.pin_newest(lambda each: each.step == 9) is None


def test_with_two_generations_and_one_being_persisted_there_is_no_room(folder):
    arena = Arena.make(folder, identity(count=2))
    assert [save(arena, 1), save(arena, 2)] == [0, 1]
    arena.pin(0)
    assert arena.begin(record(3)) is None
    arena.unpin(0)
    assert (save(arena, 3), load(arena)) == (0, 3)
    arena.close()


def test_hashes_are_kept_behind_the_data_and_a_new_save_forgets_them(arena):
    saved = record(1, 2 * CHUNK_BYTES)
    save(arena, 1, saved.data_bytes)
    with pytest.raises(BadCheckpoint, match="has no sums"):
        arena.sums(0)
    with pytest.raises(ValueError, match="not those of generation 0"):
        arena.set_hashed(0, [1, 2])
    sums = sums_of(arena.map(0, saved.shard_bytes))
    arena.set_hashed(0, sums)
    assert (arena.sums(0), arena.slots()[0].state, len(sums)) == (tuple(sums), SlotState.HASHED, 3)
    for step in (2, 3):
        save(arena, step)
    assert arena.begin(record(4)) == 0
    with pytest.raises(BadCheckpoint, match="has no sums"):
        arena.sums(0)


def test_a_flipped_bit_in_a_sum_is_found(arena):
    save(arena, 1)
    arena.set_hashed(0, sums_of(arena.map(0, record(1).shard_bytes)))
    arena.map(0, record(1).region_bytes)[record(1).sums_at] ^= 1
    with pytest.raises(BadCheckpoint, match="not what was written"):
        arena.sums(0)


def test_views_outlive_a_generation_that_grows_and_the_arena_itself(folder):
    arena = Arena.make(folder, identity())
    save(arena, 1)
    view = arena.map(0, record(1).shard_bytes)
    arena.reserve(0, 20_000_000)
    assert len(arena.map(0, 20_000_000)) == 20_000_000
    arena.close()
    arena.remove()
    assert bytes(view[-3:]) == b"\1\1\1"
    assert list(folder.iterdir()) == []


def test_a_generation_is_populated_ahead_and_keeps_what_it_holds(arena):
    save(arena, 1)
    assert not arena.is_mapped(0, 1)
    assert arena.populate(0, 20_000_000)
    assert arena.is_mapped(0, 20_000_000)
    assert load(arena) == 1
    assert arena.path.stat().st_blocks * 512 >= 20_000_000


def test_bytes_that_were_never_reserved_are_not_mapped(arena):
    with pytest.raises(BadCheckpoint, match="are not there"):
        arena.map(0, 5_000)


# Who may write: one process, for as long as it lives.

CLAIM = """
from turnout.launcher.checkpoint.arena.arena import Arena
arena = Arena.open(sys.argv[1])
print(arena.claim(), flush=True)
"""


def test_only_one_living_process_writes(arena):
    with child(f"{CLAIM}sys.stdin.read()", arena.path) as other:
        assert other.stdout.readline() == "True\n"
        assert not arena.claim()
        with pytest.raises(ArenaBusy):
            arena.begin(record(1))
        other.kill()
        other.wait()
    assert arena.claim()
    assert save(arena, 1) == 0


def test_a_forked_child_neither_writes_nor_holds_the_place_of_its_parent(arena):
    fork = (
        "\nif os.fork() == 0:\n    print(arena.claim(), flush=True)\n    sys.stdin.read()\n    os._exit(0)\nos.wait()"
    )
    with child(CLAIM + fork, arena.path) as parent:
        assert [parent.stdout.readline() for _ in range(2)] == ["True\n", "False\n"]
        parent.kill()
        parent.wait()
        assert arena.claim()
        parent.stdin.close()  # the child's end


# What memory there is.

SMALL = """
from turnout.launcher.checkpoint.format.arena_layout import Identity, ShardRecord
from turnout.launcher.errors import NoMemory
from turnout.launcher.checkpoint.arena.arena import Arena, boot_id
arena = Arena.make(sys.argv[1], Identity("run", "w", 0, boot_id(), 3))
def save(step, size):
    try:
        generation = arena.begin(ShardRecord(0, step, 1, 0, 1, 4096, size))
    except NoMemory as error:
        return str(error).split("; ")[0].removeprefix(sys.argv[1])
    arena.map(generation, 4096 + size)[:] = bytes([step]) * (4096 + size)
    arena.seal(generation, ShardRecord(0, step, 1, 0, 1, 4096, size))
    return generation
free = lambda: os.statvfs(sys.argv[1]).f_bavail * os.statvfs(sys.argv[1]).f_frsize
before = free()
print(save(1, 9 << 20), free() == before)
print(save(2, 3 << 20), save(3, 3 << 20), save(4, 3 << 20))
print([(slot.state.name, slot.record and slot.record.step) for slot in arena.slots()])
print(save(5, 1 << 20), save(6, 4 << 20))
print([(slot.state.name, slot.record and slot.record.step) for slot in arena.slots()])
"""


@pytest.mark.root
@pytest.mark.debian("util-linux")
def test_too_little_memory_is_an_error_that_costs_nothing_saved(tmp_path):
    mounted = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m none "$1" && shift && exec "$@"', "sh", tmp_path)
    with child(SMALL, tmp_path, before=mounted) as other:
        out, err = other.communicate(timeout=60)
    assert (other.returncode, err) == (0, "")
    assert out.splitlines() == [
        " cannot allocate 9445376 bytes for generation 0: No space left on device True",
        "0 1 0",  # the third generation finds no memory: the oldest of the others is taken
        "[('SEALED', 4), ('SEALED', 3), ('EMPTY', None)]",
        "2  cannot allocate 4202496 bytes for generation 1: No space left on device",
        "[('SEALED', 4), ('SEALED', 3), ('SEALED', 5)]",
    ]


def test_a_folder_that_is_not_there_is_no_memory(tmp_path):
    with pytest.raises(NoMemory, match="takes no memory for checkpoints"):
        Arena.make(tmp_path / "nowhere", identity())
