"""How much memory checkpoints need, and that a pod that has too little is told what to write."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES
from turnout.launcher.checkpoint.format.memory_budget import REPLICA_GENERATIONS, Limits, need_bytes, refusal

GIB = 1 << 30
sizes, few = st.integers(0, 1 << 40), st.integers(0, 8)


@pytest.mark.parametrize(
    ("counts", "pages"),
    [
        pytest.param((PAGE_BYTES, 3, 1), 3 + 4, id="three generations of a page, their tables and an identity"),
        pytest.param((1, 3, 1), 3 + 4, id="a page is the least"),
        pytest.param((PAGE_BYTES + 1, 2, 1), 4 + 3, id="and pages are whole"),
        pytest.param((PAGE_BYTES, 3, 8), 8 * 7, id="for each process"),
        pytest.param((PAGE_BYTES, 3, 1, 1), 7 + 5, id="a replica: one that is whole and one that arrives"),
        pytest.param((PAGE_BYTES, 3, 2, 2), 2 * (7 + 2 * 5), id="two replicas of each process"),
        pytest.param((0, 2, 1), 3, id="nothing to save"),
    ],
)
def test_the_need_is_own_and_replica_generations(counts, pages):
    assert need_bytes(*counts) == pages * PAGE_BYTES


@given(sizes, st.integers(1, 7), st.integers(1, 16), few)
def test_the_need_is_that_many_shards_and_their_tables_and_no_more(shard, generations, processes, replicas):
    shards = processes * (generations + replicas * REPLICA_GENERATIONS)
    need = need_bytes(shard, generations, processes, replicas)
    assert shards * shard <= need <= shards * (shard + 3 * PAGE_BYTES) + (1 + replicas) * processes * PAGE_BYTES


ROOM = Limits(8 * GIB, 8 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("need", "limits", "pinned"),
    [
        pytest.param(8 * GIB, ROOM, 8 * GIB, id="exactly as much as there is"),
        pytest.param(8 * GIB, Limits(8 * GIB), 8 * GIB, id="nothing else limits it"),
        pytest.param(8 * GIB, Limits(8 * GIB, 8 * GIB, 0), 0, id="what is not pinned needs no right to pin"),
        pytest.param(0, Limits(0, 0, 0), 0, id="nothing is needed"),
    ],
)
def test_what_is_there_is_not_refused(need, limits, pinned):
    assert refusal(need, limits, pinned) is None


def spec(no):
    return yaml.safe_load(no.advice)["spec"]


def test_a_small_file_system_is_told_with_a_volume_to_add():
    no = refusal(20 * GIB + 1, Limits(64 << 20))
    assert no.fault == (
        "checkpoints in memory need 20.00 GiB (21474836481 bytes): /dev/shm has 64.00 MiB (67108864 bytes) free"
    )
    volume = {"name": "turnout-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "21Gi"}}
    mount = {"name": "turnout-memory", "mountPath": "/dev/shm"}
    assert spec(no) == {"volumes": [volume], "containers": [{"name": "main", "volumeMounts": [mount]}]}
    assert "counts against it" in no.advice
    assert no.advice in str(no)


def test_a_folder_of_the_users_own_is_where_the_volume_goes():
    no = refusal(GIB, Limits(0), folder="/memory")
    assert spec(no)["containers"][0]["volumeMounts"][0]["mountPath"] == "/memory"


def test_a_small_memory_limit_is_told_with_a_larger_one():
    no = refusal(20 * GIB, Limits(64 * GIB, 5 * GIB, cgroup_bytes=32 * GIB))
    assert "the pod's memory limit leaves 5.00 GiB" in no.fault
    assert spec(no) == {"containers": [{"name": "main", "resources": {"limits": {"memory": "47Gi"}}}]}


def test_what_a_volume_holds_already_is_added_to_it():
    no = refusal(20 * GIB, Limits(5 * GIB, size_bytes=16 * GIB))
    assert spec(no)["volumes"][0]["emptyDir"]["sizeLimit"] == "31Gi"


def test_what_may_not_be_pinned_is_told_with_the_right_to():
    no = refusal(GIB, Limits(8 * GIB, None, 64 << 10), pinned=GIB)
    assert "may be" in no.fault
    assert spec(no)["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


def test_all_that_is_missing_is_told_at_once():
    no = refusal(20 * GIB, Limits(0, 0, 0), pinned=GIB)
    (container,) = spec(no)["containers"]
    assert {*container} == {"name", "volumeMounts", "resources", "securityContext"}
    assert no.fault.count(";") == 2


def test_a_machine_that_has_less_than_its_file_system_allows_is_told_so():
    """Without a limit for the pod nothing else stands between a save and the kernel that ends processes."""
    no = refusal(20 * GIB, Limits(64 * GIB, available_bytes=5 * GIB))
    assert "this machine has 5.00 GiB" in no.fault
    assert spec(no) == {"containers": [{"name": "main", "resources": {"requests": {"memory": "20Gi"}}}]}


@pytest.mark.parametrize(
    ("free_bytes", "size"),
    [
        pytest.param(GIB, "1.00 GiB (1073741824 bytes)", id="a GiB"),
        pytest.param(GIB - 1, "1024.00 MiB (1073741823 bytes)", id="a byte less"),
        pytest.param(1 << 10, "1.00 KiB (1024 bytes)", id="a KiB"),
        pytest.param((1 << 10) - 1, "has 1023 bytes free", id="a byte less than that"),
    ],
)
def test_sizes_are_told_as_people_read_them(free_bytes, size):
    assert size in refusal(9 * GIB, Limits(free_bytes)).fault


@pytest.mark.parametrize(("need", "size"), [(1, "1Gi"), (GIB, "1Gi"), (GIB + 1, "2Gi")])
def test_a_gibibyte_is_the_least_to_ask_for(need, size):
    assert spec(refusal(need, Limits(0)))["volumes"][0]["emptyDir"]["sizeLimit"] == size


maybe = st.none() | sizes


@given(sizes, st.builds(Limits, sizes, maybe, maybe, maybe, maybe, maybe), sizes)
def test_it_is_refused_just_when_memory_lacks_and_the_advice_is_enough(need, limits, pinned):
    no = refusal(need, limits, pinned)
    left = limits.cgroup_left_bytes
    volume, memory = need > limits.free_bytes, left is not None and need > left
    machine = limits.available_bytes is not None and need > limits.available_bytes
    lock = limits.locked_bytes is not None and pinned > limits.locked_bytes
    assert (no is not None) == (volume or memory or lock or machine)
    if no is None:
        return
    (container,) = spec(no)["containers"]
    assert ("volumeMounts" in container, "resources" in container, "securityContext" in container) == (
        volume, memory or machine, lock
    )  # fmt: skip
    if volume:
        size = int(spec(no)["volumes"][0]["emptyDir"]["sizeLimit"].removesuffix("Gi")) * GIB
        assert size >= max(need, (limits.size_bytes or 0) - limits.free_bytes + need if limits.size_bytes else 0)
    if memory:
        size = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * GIB
        assert size >= max(need, limits.cgroup_bytes - left + need if limits.cgroup_bytes else 0)
