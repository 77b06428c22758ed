"""Steps in object stores, by way of fsspec: the same rules as for files."""

import itertools
import time

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.launcher.checkpoint.storage.world import NOW_S, RUN, Said, commit, region, round_of_step, save, save_all
from turnout.launcher.checkpoint.format.manifest import Latest
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.object_store import ObjectStore
from turnout.launcher.checkpoint.storage.posix_store import PosixStore, open_store
from turnout.launcher.checkpoint.storage.shard_writer import ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import committed_steps, load, manifest_of, newest_manifest, verify
from turnout.launcher.errors import BadCheckpoint, StorageFailed

_numbers = itertools.count()


@pytest.fixture(params=["memory", "file"])
def url(request, folder):
    """A place in a store of objects, empty."""
    if request.param == "file":
        yield f"file://{folder}"
        return
    yield f"memory://bucket-{next(_numbers)}/checkpoints"
    MemoryFileSystem().rm("/", recursive=True)


@pytest.fixture
def store(url):
    object_store = ObjectStore(url)
    object_store.prepare()
    return object_store


def objects(url, step):
    fs, path = fsspec.core.url_to_fs(url)
    return fs, sorted(fs.ls(f"{path}/step-{step:010}", detail=False))


def test_a_step_is_committed_and_read_again(store):
    assert (newest_manifest(store, Said()), committed_steps(store, Said())) == (None, ())
    save(store, 10, 1)
    assert commit(store, 10) is None
    save(store, 10, 0)
    assert (commit(store, 10), round_of_step(store, 10)) == (manifest_of(store, 10), 1)
    save_all(store, 20, size_bytes=9 << 20)
    assert (newest_manifest(store, Said()).step, committed_steps(store, Said())) == (20, (10, 20))
    assert round_of_step(store, 20, 9 << 20) == 1


def test_shards_of_two_rounds_never_have_one_name(store):
    save_all(store, 10)
    before = manifest_of(store, 10)
    save(store, 10, 0, round_=2)
    assert (round_of_step(store, 10), manifest_of(store, 10)) == (1, before)
    save(store, 10, 1, round_=2)
    assert commit(store, 10, round_=2)
    assert round_of_step(store, 10) == 2
    assert [load(store, before, rank) for rank in (0, 1)] == [region(10, rank) for rank in (0, 1)]


@pytest.mark.parametrize("which", ["rank-00000", "rank-00001", "manifest.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut short", "gone"])
def test_an_object_that_is_not_what_was_put_is_found(url, store, which, harm):
    save_all(store, 10)
    save_all(store, 20)
    fs, folder = objects(url, 20)
    path = next(path for path in folder if which in path and path.endswith(("manifest.json", ".safetensors")))
    content = fs.cat_file(path)
    fs.rm_file(path)
    if harm == "flipped":
        fs.pipe_file(path, content[:200] + bytes([content[200] ^ 1]) + content[201:])
    if harm == "cut short":
        fs.pipe_file(path, content[:-1])
    with pytest.raises(BadCheckpoint):
        verify(store, 20)
    if harm != "flipped" or which == "manifest.json":
        assert newest_manifest(store, Said()).step == 10
    assert round_of_step(store, 10) == 1


def test_a_region_that_changed_becomes_no_object(url, store):
    octets = region(10, 0, size_bytes=9 << 20)
    sums = sums_of(memoryview(octets))
    octets[-1] ^= 1
    with pytest.raises(BadCheckpoint, match="chunk 2"):
        persist(store, ShardWrite(RUN, 10, 1, 0, 1, 4_096), memoryview(octets), sums, NOW_S)
    assert objects(url, 10)[1] == []


def test_steps_are_retired_and_what_is_outrun_is_swept(store):
    for step in (10, 20):
        save_all(store, step)
    save_all(store, 20, round_=2)
    assert remove_old_steps(store, Latest(1), Said()) == (10,)
    assert store.steps() == (20,)
    assert sweep(store, time.time() - 100, Said(), 60) == ()
    assert len(sweep(store, time.time() + 100, Said(), 60)) == 2
    assert round_of_step(store, 20) == 2


class Failing(MemoryFileSystem):
    """A store that fails in its own way, at the call that its counter says."""

    protocol = "failing"
    store, pseudo_dirs, cachable = {}, [""], False
    left = 0

    class Throttled(Exception):
        """No OSError, as those of most clients."""

    def _open(self, path, mode="rb", **more):
        if "w" in mode:
            Failing.left -= 1
            if Failing.left == 0:
                raise self.Throttled("slow down")
        return super()._open(path, mode, **more)


@pytest.mark.parametrize("number", range(1, 6))
def test_a_store_that_fails_is_told_and_what_is_committed_stays(number):
    fsspec.register_implementation("failing", Failing, clobber=True)
    Failing.left = 0
    store = ObjectStore(f"failing://bucket-{number}")
    save_all(store, 10)
    Failing.left = number
    with pytest.raises(StorageFailed, match=r"failing://bucket-\d: writing .* of step 20: Throttled: slow down"):
        save_all(store, 20)
    assert committed_steps(store, Said()) == (10,)
    save_all(store, 20)
    assert (round_of_step(store, 10), round_of_step(store, 20)) == (1, 1)


def test_a_target_with_a_scheme_is_objects_and_any_other_a_folder(folder):
    assert isinstance(open_store("memory://bucket/run"), ObjectStore)
    assert isinstance(open_store(f"file://{folder}"), PosixStore)
    assert isinstance(open_store(str(folder)), PosixStore)


@pytest.mark.parametrize("target", ["nosuch://bucket/run", "s3://key:secret@bucket/run?token=secret"])
def test_a_target_that_cannot_be_opened_is_told_without_its_secrets(target):
    with pytest.raises(StorageFailed) as error:
        open_store(target).steps()
    assert "bucket/run" in str(error.value)
    assert "secret" not in str(error.value)
