"""torch.distributed.checkpoint over memory and storage: what any world saves any other loads, and nothing else."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from hack.bench.saving.worlds import sharded
from launcher.checkpoint.layout import Spec, head_of, pack, read_head
from launcher.checkpoint.manifest import Manifest, read, write
from launcher.checkpoint.sums import CHUNK_BYTES, sums_of
from launcher.errors import BadCheckpoint
from launcher.shell.saving.dcp import FlashLoadPlanner, FlashStorageReader, FlashStorageWriter
from launcher.shell.saving.dcp_reading import memories
from launcher.shell.storage.opening import open_store
from launcher.shell.storage.writer import Saving, persist
from tests.launcher.agents.crew import free_port

ROOT = Path(__file__).resolve().parents[3]
WORLDS, TRAINS = (Path(__file__).with_name("scripts") / name for name in ("worlds.py", "trains.py"))
AHEAD = "torch,torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint,launcher.shell.saving.dcp"
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


def outside(memory):
    """The environment of a process that no launcher has started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    return kept | {"TURNOUT_MEMORY_DIR": str(memory), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run(folder, tasks):
    """What each rank of each world has found, in the order of tasks."""
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, WORLDS, folder],
        input=json.dumps(tasks),
        env=outside(memory),
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = [[None] * task["world"] for task in tasks]
    for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
        told = json.loads(line)
        found[told["task"]][told["rank"]] = told
    assert all(all(ranks) for ranks in found), done.stderr[-3000:]
    return found


def found_by(ranks):
    """What all ranks of a world have found alike."""
    assert all("found" in each for each in ranks), [each.get("trace") for each in ranks]
    assert all(each["found"] == ranks[0]["found"] for each in ranks)
    return ranks[0]["found"]


SIZES = (1, 2, 3)


OTHER_SIZES = {
    f"save by {by}": {"do": "save", "world": by, "step": by, "name": f"ours{by}", "theirs": f"theirs{by}"}
    for by in SIZES
} | {f"load by {world}": {"do": "loads", "world": world, "names": SIZES} for world in SIZES}
TASKS = OTHER_SIZES | {
    "fsdp1": {"do": "fsdp1", "world": 2, "step": 3, "name": "fsdp1"},
    "steps": {"do": "saves", "world": 2, "sizes": [1, 1, 0, 1]},
    "fewer again": {"do": "load", "world": 2, "step": 3, "more": False},
    "more again": {"do": "load", "world": 3},
    "one or two": {"do": "disagree", "world": 2, "steps": [2, 1]},
    "one or fewer": {"do": "disagree", "world": 2, "steps": [1, 3], "more": False},
    "refused": {"do": "refused", "world": 2, "step": 1, "name": "nothing"},
    "differ": {"do": "steps_differ", "world": 2, "name": "nothing"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worlds")


@pytest.fixture(scope="module")
def told(folder):
    """What the ranks of each world have told."""
    return dict(zip(TASKS, run(folder, list(TASKS.values())), strict=True))


@pytest.mark.parametrize("world", SIZES)
@pytest.mark.parametrize("by", SIZES)
def test_what_a_world_saves_each_other_world_loads_bit_by_bit_as_dcp_does_from_files(told, by, world):
    saved, loaded = found_by(told[f"save by {by}"]), found_by(told[f"load by {world}"])[by - 1]
    assert loaded == saved
    assert len(saved) > 20


def test_a_sharded_state_dict_of_fsdp1_comes_back_and_its_optimizer_by_the_same_reader(told):
    assert found_by(told["fsdp1"]) is True


def test_a_state_dict_may_grow_from_save_to_save(told):
    _, _, fewer, more = found_by(told["steps"])
    assert len(more) > len(fewer)
    assert (found_by(told["fewer again"]), found_by(told["more again"])) == (fewer, more)


def test_ranks_that_find_different_steps_read_the_oldest_of_them_if_it_is_alike(told):
    one, two, _, _ = found_by(told["steps"])
    assert found_by(told["one or two"]) == one != two
    assert all("different checkpoints, of steps [1, 3]" in each["error"] for each in told["one or fewer"])


def test_shards_of_two_saves_of_one_step_are_not_read_as_one(told, folder, tmp_path, environ):
    stores = [folder / name / "step-0000000002" for name in ("ours2", "ours")]
    manifests = [read((store / "manifest.json").read_bytes()) for store in stores]
    mixed = tmp_path / "mixed" / "step-0000000002"
    mixed.mkdir(parents=True)
    shards = tuple(manifest.shards[rank] for rank, manifest in enumerate(manifests))
    for store, shard in zip(stores, shards, strict=True):
        shutil.copy(store / shard.file, mixed)
    (mixed / "manifest.json").write_bytes(write(Manifest("r", 2, 0, 2, 0.0, shards)))
    reader = FlashStorageReader(mixed.parent, environ=environ)
    with pytest.raises(CheckpointException, match="rank 1 of step 2 is of another save of this step"):
        dcp.load({"model": {"first.weight": torch.zeros(7, 5)}}, storage_reader=reader)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("refused", "extra.deep/#1: a builtins.function is neither", id="a value, with its path"),
        pytest.param("differ", "the ranks save different steps: [0, 1]", id="steps that differ from rank to rank"),
    ],
)
def test_what_one_rank_cannot_save_all_are_told(told, what, why):
    assert all(why in each["error"] for each in told[what]), [each["error"] for each in told[what]]


def train(folder, log, last, killed=0, processes=2, workers=1):
    """Run trains.py under turnout-run. Gives the step that each rank of each life begins with, and digests."""
    folders = [log.with_name(f"memory{at}") for at in range(workers)]
    meeting = ("--nnodes", str(workers), "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    agents = []
    log.unlink(missing_ok=True)
    for at, memory in enumerate(folders):
        memory.mkdir(exist_ok=True)
        command = (
            "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "launcher", *meeting, "--name", f"w{at}",
            "--nproc-per-node", str(processes // workers), "--max-restarts", "1", "--preload", AHEAD,
            str(TRAINS), str(log), str(folder), str(last), str(killed),
        )  # fmt: skip
        agents.append(subprocess.Popen(command, env=outside(memory), stderr=subprocess.PIPE, text=True))
    try:
        told = [agent.communicate(timeout=150)[1] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0] * workers, told[0][-3000:]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begins = {(each["restarts"], each["rank"]): each["step"] for each in lines if each["at"] == "starts"}
    return begins, {(each["restarts"], each["at"], each["step"]): each["bits"] for each in lines}


def test_a_world_of_two_workers_goes_on_from_memory_and_needs_no_storage(tmp_path):
    """What both ranks have alike, only one of them saves: the other worker's memory has it, too."""
    begins, bits = train("/dev/null/nowhere", tmp_path / "log", last=5, killed=3, workers=2)
    assert begins == {(0, 0): 0, (0, 1): 0, (1, 0): 3, (1, 1): 3}
    assert bits[1, "starts", 3] == bits[0, "saved", 3]


def test_what_was_in_memory_when_a_rank_died_is_in_storage_and_a_larger_world_loads_it(tmp_path):  # DL-54
    begins, bits = train(tmp_path / "checkpoints", tmp_path / "log", last=3, killed=3)
    assert begins == {(0, 0): 0, (0, 1): 0, (1, 0): 3, (1, 1): 3}
    begins, again = train(tmp_path / "checkpoints", tmp_path / "log", last=3, processes=3)
    assert begins == {(0, 0): 3, (0, 1): 3, (0, 2): 3}
    assert again[0, "starts", 3] == bits[0, "saved", 3] == bits[1, "starts", 3]


class Alone:
    """One process without an agent. Its memory lies in a folder of the test's own."""

    def __init__(self, folder, environ):
        self.folder, self.environ = folder, environ

    def save(self, step=1, value=1.0, **options):
        writer = FlashStorageWriter(self.folder, step=step, environ=self.environ, **options)
        dcp.save(a_state(value), storage_writer=writer)
        return writer

    def reader(self, step=None):
        return FlashStorageReader(self.folder, step=step, environ=self.environ)

    def load(self, reader=None, **options):
        state = a_state(0.0)
        dcp.load(state, storage_reader=reader or self.reader(), **options)
        return state

    def forget(self):
        """Its end, as far as memory goes: what is in flight is written first."""
        memories.close()

    @property
    def shard(self):
        return next(self.folder.rglob("*.safetensors"))


@pytest.fixture
def alone(tmp_path, environ):
    yield Alone(tmp_path / "checkpoints", environ)
    memories.close()


def a_state(value=1.0):
    return {"w": torch.full((3, 5), value), "n": {"step": int(value), "rate": 0.1}, "e": torch.zeros(0, 2)}


def same(state, value):
    wanted = a_state(value)
    return torch.equal(state["w"], wanted["w"]) and state["n"] == wanted["n"]


def test_nothing_stored_is_false_and_is_not_loaded(alone):
    reader = alone.reader()
    assert not reader
    with pytest.raises(BadCheckpoint, match="nothing is stored here"):
        reader.read_metadata()


def test_a_step_that_is_not_there_is_false_too_and_the_newest_is_the_default(alone):
    for step in (1, 2):
        alone.save(step, float(step))
    alone.forget()
    assert not alone.reader(3)
    assert alone.reader().step == 2
    assert same(alone.load(), 2.0)
    assert same(alone.load(alone.reader(1)), 1.0)


def test_a_reader_stays_with_its_step(alone):
    alone.save(1)
    alone.forget()
    reader = alone.reader()
    assert reader
    alone.save(2, 2.0).wait(60)
    assert same(alone.load(reader), 1.0)


def test_memory_alone_serves_the_process_that_saved(alone):
    alone.save(5, 5.0, disk=False)
    assert same(alone.load(), 5.0)
    assert not alone.folder.exists()


def test_broken_memory_is_told_and_the_same_save_read_from_storage(alone, memory, caplog):
    alone.save(5, 5.0).wait(60)
    reader = alone.reader()
    assert reader
    mark, found = a_state(5.0)["w"].numpy().tobytes(), 0
    with next(memory.glob("*.arena")).open("r+b") as file:
        for generation in range(1, 4):
            file.seek(generation << 40)
            at = file.read(1 << 20).find(mark)
            if at >= 0:
                file.seek((generation << 40) + at)
                file.write(b"\xff")
                found += 1
    assert found == 1
    assert same(alone.load(reader), 5.0)
    assert "memory_passed_over" in caplog.text


def test_a_flipped_byte_is_found_wherever_it_is(alone):
    alone.save()
    alone.forget()
    content = alone.shard.read_bytes()
    for at in (*range(0, len(content), 211), len(content) - 1):
        alone.shard.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((BadCheckpoint, CheckpointException), match="not what was written"):
            alone.load()
    alone.shard.write_bytes(content)
    assert same(alone.load(), 1.0)


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def forge(alone, change):
    """Rewrite step 1, as somebody can who knows how to sum. change: of its tensors' bytes by name, and its tree."""
    content = alone.shard.read_bytes()
    layout, metadata, head_bytes = read_head(content)
    data = {each.name: content[head_bytes + each.start : head_bytes + each.end] for each in layout.entries}
    about = json.loads(metadata["turnout"])
    about["tree"] = change(data, about["tree"])
    shapes = {each.name: (len(data[each.name]),) if each.dtype == "U8" else each.shape for each in layout.entries}
    again = pack(Spec(each.name, each.dtype, shapes[each.name]) for each in layout.entries)
    head = head_of(again, {"turnout": json.dumps(about)})
    region = memoryview(bytearray(head + b"".join(data[each.name] for each in again.entries)))
    for path in alone.folder.rglob("*.*"):
        path.unlink()
    store = open_store(str(alone.folder))
    note = persist(store, Saving("r", 1, 0, 0, 1, len(head)), region, sums_of(region), time.time())
    manifest = Manifest("r", 1, 0, 1, note.saved_s, (note.shard,))
    store.put(1, "manifest.json", [memoryview(write(manifest))], round_number=0, replace=True)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        pytest.param("metadata", "not the metadata of a checkpoint", id="a pickle in place of the metadata"),
        pytest.param("value", "is no JSON", id="a pickle in place of a value"),
    ],
)
def test_a_pickle_is_refused_even_with_the_right_sums(alone, tmp_path, place, why):
    alone.save()
    alone.forget()
    forge(alone, lambda data, tree: tree)
    assert same(alone.load(), 1.0)  # so that is how it is forged
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"), protocol=0)

    def change(data, tree):
        if place == "metadata":
            data["table"] = bomb
            return tree
        old, new = json.dumps("0.1"), json.dumps(bomb.decode())
        assert old in tree
        return tree.replace(old, new)

    forge(alone, change)
    with pytest.raises((BadCheckpoint, CheckpointException), match=why):
        alone.load()
    assert not (tmp_path / "exploded").exists()


def test_metadata_of_another_save_is_refused(alone):
    alone.save()
    alone.forget()
    forge(alone, lambda data, tree: re.sub(r'"save","[0-9a-f]{32}"', f'"save","{"0" * 32}"', tree))
    with pytest.raises(BadCheckpoint, match="of another save"):
        alone.load()


class Prefixed(FlashLoadPlanner):
    """A planner of the user's own, over ours."""

    loaded = ()

    def load_bytes(self, read_item, value):
        super().load_bytes(read_item, value)
        self.loaded += (read_item.dest_index.fqn,)


class Pickles(dcp.DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return super().transform_object(write_item, object)


class Unpickles(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item, value):
        super().load_bytes(read_item, value)


def test_a_planner_over_ours_is_asked(alone):
    alone.save()
    planner = Prefixed()
    assert same(alone.load(planner=planner), 1.0)
    assert sorted(planner.loaded) == ["n.rate", "n.step"]


def test_a_planner_that_pickles_or_unpickles_is_refused(alone):
    writer = FlashStorageWriter(alone.folder, step=1, environ=alone.environ)
    with pytest.raises(CheckpointException, match="make it a FlashSavePlanner"):
        dcp.save(a_state(), storage_writer=writer, planner=Pickles())
    alone.save()
    with pytest.raises(CheckpointException, match="make it a FlashLoadPlanner"):
        alone.load(planner=Unpickles())


@pytest.mark.skipif("enable_plan_caching" not in signature(dcp.DefaultSavePlanner).parameters, reason="2.7 and newer")
def test_a_planner_that_keeps_plans_from_save_to_save_is_refused(alone):
    def save(step):
        writer = FlashStorageWriter(alone.folder, step=step, environ=alone.environ)
        dcp.save(a_state(), storage_writer=writer, planner=dcp.DefaultSavePlanner(enable_plan_caching=True))

    save(1)
    with pytest.raises(CheckpointException, match="leave enable_plan_caching off"):
        save(2)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        pytest.param({"a": {"b": object()}}, "a.b: a builtins.object", id="an object"),
        pytest.param({"a": (1, {"c": {2}})}, "a/#1/c: a builtins.set", id="a set in a tuple"),
        pytest.param({"a": (torch.ones(2),)}, "a/#0: a tensor in a tuple", id="a tensor where DCP does not look"),
        pytest.param({"a": torch.ones(2, dtype=torch.complex128)}, "a: torch.complex128", id="a dtype without a place"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_path(alone, state, why):
    with pytest.raises(CheckpointException, match=re.escape(why)):
        dcp.save(state, storage_writer=FlashStorageWriter(alone.folder, step=1, environ=alone.environ))


def test_a_tensor_of_many_chunks_is_read_in_parts(alone):
    rows = torch.arange(3 * CHUNK_BYTES // 8 + 1_000).view(-1, 8)
    state = {"a": torch.ones(5), "rows": rows, "z": torch.ones(7)}
    dcp.save(state, storage_writer=FlashStorageWriter(alone.folder, step=1, environ=alone.environ))
    alone.forget()
    dcp.load(found := {name: torch.zeros_like(each) for name, each in state.items()}, storage_reader=alone.reader())
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_part_is_read_without_what_lies_around_it_and_by_whole_chunks_where_there_is_no_note(alone):
    rows = torch.arange(CHUNK_BYTES).view(-1, 1 << 10)  # 4 MiB of them for each of 8 ranks, behind a head

    def loaded(rank):
        state = sharded({"rows": torch.zeros_like(rows)}, rank, 8)
        dcp.load(state, storage_reader=alone.reader())
        return torch.equal(state["rows"].to_local(), rows.chunk(8)[rank])

    dcp.save({"rows": rows}, storage_writer=FlashStorageWriter(alone.folder, step=1, environ=alone.environ))
    alone.forget()
    with alone.shard.open("r+b") as file:  # of rank 1, in the chunk in which rank 0's rows end
        os.pwrite(file.fileno(), b"\xff", 6 << 20)
    assert all(map(loaded, (0, 3)))
    with pytest.raises(CheckpointException, match="block 24, at byte 6291456, is not what was written"):
        loaded(1)
    alone.shard.with_suffix(".json").unlink()  # its note
    with pytest.raises(CheckpointException, match="chunk 1, at byte 4194304, is not what was written"):
        loaded(0)
    assert loaded(3)
