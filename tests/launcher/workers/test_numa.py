"""Which CPUs a process is bound to, on machines as their /sys describes them."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.launcher.workers.numa import (
    Binding,
    CpuSet,
    Device,
    Machine,
    NotBound,
    bind,
    gpus,
    machine,
    numbers,
    read_machine,
    visible_devices,
)


def recorded(nodes, *, cores, sockets=1, threads=2, cores_a_cache=2):
    """The texts of a machine: nodes x cores x threads. Its second threads are numbered after all cores, as on x86."""
    files, total = {}, nodes * cores
    for node in range(nodes):
        mine = range(node * cores, (node + 1) * cores)
        siblings = [
            f"{first + thread * total}-{first + thread * total + cores - 1}"
            for thread in range(threads)
            for first in mine[:1]
        ]
        files[f"node/node{node}/cpulist"] = ",".join(siblings) + "\n"
        for core in mine:
            group = [core - core % cores_a_cache + each for each in range(cores_a_cache)]
            for thread in range(threads):
                at = f"cpu/cpu{core + thread * total}"
                files[f"{at}/topology/thread_siblings_list"] = ",".join(str(core + t * total) for t in range(threads))
                files[f"{at}/topology/physical_package_id"] = f"{node * sockets // nodes}\n"
                for index, (level, kind) in enumerate(
                    [(1, "Data"), (1, "Instruction"), (2, "Unified"), (3, "Unified")]
                ):
                    shared = [core] if level < 3 else group
                    files[f"{at}/cache/index{index}/level"] = f"{level}\n"
                    files[f"{at}/cache/index{index}/type"] = f"{kind}\n"
                    files[f"{at}/cache/index{index}/shared_cpu_list"] = ",".join(
                        str(each + t * total) for each in shared for t in range(threads)
                    )
    return files


def of(nodes, devices=(), *, allowed=None, **more):
    files = recorded(nodes, **more)
    cpus = range(256) if allowed is None else allowed
    on = machine(files, cpus, [Device(f"0000:{at:02x}:00.0", node) for at, node in enumerate(devices)])
    assert isinstance(on, Machine)
    return on


# Four nodes of four cores with two threads each, in two sockets; L3 is shared by two cores.
FOUR = {"nodes": 4, "cores": 4, "sockets": 2}
EIGHT_GPUS = (0, 0, 1, 1, 3, 3, 2, 2)


@pytest.mark.parametrize(
    ("how", "local_rank", "cpus"),
    [
        pytest.param("node", 0, "0-3,16-19", id="node of GPU 0"),
        pytest.param("node", 4, "12-15,28-31", id="node of GPU 4"),
        pytest.param("socket", 1, "0-7,16-23", id="socket of GPU 1"),
        pytest.param("socket", 7, "8-15,24-31", id="socket of GPU 7"),
        pytest.param("exclusive", 0, "0-1,16-17", id="half of the node's cores"),
        pytest.param("exclusive", 1, "2-3,18-19", id="the other half"),
        pytest.param("exclusive", 6, "8-9,24-25", id="half of another node"),
        pytest.param("core-complex", 4, "12-13,28-29", id="a cache"),
        pytest.param("core-complex", 5, "14-15,30-31", id="the next cache"),
    ],
)
def test_a_process_is_bound_to_the_place_of_its_gpu(how, local_rank, cpus):
    on = of(**FOUR, devices=EIGHT_GPUS)
    assert bind(on, Binding(how), local_rank, 8) == CpuSet(numbers(cpus))


@pytest.mark.parametrize(
    ("how", "processes", "cpus"),
    [
        pytest.param("node", 4, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"], id="one a node"),
        pytest.param("node", 2, ["0-3,16-19", "8-11,24-27"], id="far apart"),
        pytest.param(
            "exclusive",
            6,
            ["0-1,16-17", "2-3,18-19", "4-7,20-23", "8-9,24-25", "10-11,26-27", "12-15,28-31"],
            id="uneven",
        ),
        pytest.param("core-complex", 4, ["0-1,16-17", "4-5,20-21", "8-9,24-25", "12-13,28-29"], id="caches"),
    ],
)
def test_without_gpus_processes_are_spread_over_the_nodes(how, processes, cpus):
    on = of(**FOUR)
    assert [bind(on, Binding(how), rank, processes) for rank in range(processes)] == [
        CpuSet(numbers(each)) for each in cpus
    ]


@pytest.mark.parametrize(
    ("on", "how", "rank", "why"),
    [
        pytest.param(of(**FOUR, devices=(0,)), "node", 1, "process 1 has no device: 1 are there", id="no device"),
        pytest.param(of(1, (0,) * 5, cores=4), "exclusive", 0, "NUMA node 0 has 4 cores for 5 processes", id="no core"),
        pytest.param(
            of(**FOUR, devices=(1,), allowed=[0, 1]),
            "node",
            0,
            "process 0: none of the CPUs of NUMA node 1 is ours",
            id="a cpuset elsewhere",
        ),
    ],
)
def test_what_cannot_be_bound_is_refused(on, how, rank, why):
    assert str(bind(on, Binding(how), rank, 8)) == why


def test_only_our_own_cpus_are_used():
    on = of(**FOUR, devices=(0, 0), allowed=[1, 2, 17, 30])
    assert bind(on, Binding.NODE, 0, 2) == CpuSet((1, 2, 17))
    assert [bind(on, Binding.EXCLUSIVE, rank, 2) for rank in (0, 1)] == [CpuSet((1, 17)), CpuSet((2,))]


def test_a_cache_with_more_of_our_cpus_comes_first():
    on = of(**FOUR, devices=(0, 0), allowed=[0, 2, 3, 18])
    assert [bind(on, Binding.CORE_COMPLEX, rank, 2) for rank in (0, 1)] == [CpuSet((2, 3, 18)), CpuSet((0,))]


def test_a_machine_that_says_nothing_is_refused():
    assert machine({}, range(8)) == NotBound("this machine does not say which CPU is on which NUMA node")


def test_a_virtual_machine_without_caches_and_siblings_is_read():
    on = machine({"node/node0/cpulist": "0-1\n", "cpu/cpu0/cache/index0/level": "x"}, range(4), [Device("a", -1)])
    assert bind(on, Binding.EXCLUSIVE, 0, 1) == bind(on, Binding.SOCKET, 0, 1) == CpuSet((0, 1))
    assert bind(on, Binding.CORE_COMPLEX, 0, 1) == CpuSet((0,))


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 16), st.sampled_from(Binding))
def test_nobody_gets_what_is_not_ours_and_exclusive_is_exclusive(nodes, cores, processes, how):
    on = of(nodes, cores=cores, cores_a_cache=1)
    bounds = [bind(on, how, rank, processes) for rank in range(processes)]
    cpus = [cpu for bound in bounds if isinstance(bound, CpuSet) for cpu in bound.cpus]
    assert set(cpus) <= {cpu.number for cpu in on.cpus}
    assert all(bound.cpus for bound in bounds if isinstance(bound, CpuSet))
    if how is Binding.EXCLUSIVE:
        assert len(cpus) == len(set(cpus))
        if processes <= nodes * cores and all(isinstance(bound, CpuSet) for bound in bounds):
            assert processes < nodes or len(cpus) == len(on.cpus)
    else:
        assert all(isinstance(bound, CpuSet) for bound in bounds)


@pytest.mark.parametrize(
    ("text", "found"), [("0-2,4\n", (0, 1, 2, 4)), ("", ()), ("7", (7,)), ("3-3, 1", (1, 3)), ("a-b,-1,2", (2,))]
)
def test_lists_of_the_kernel_are_read(text, found):
    assert numbers(text) == found


GPUS = (Device("a", 0, "GPU-aa"), Device("b", 1, "GPU-bb"), Device("c", 0, "GPU-bc"))


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        pytest.param(None, "abc", id="all"),
        pytest.param("", "", id="none"),
        pytest.param("2,0", "ca", id="by index, in that order"),
        pytest.param("GPU-bb", "b", id="by UUID"),
        pytest.param("GPU-a", "a", id="by the beginning of a UUID"),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_see(chosen, names):
    assert "".join(device.address for device in visible_devices(GPUS, chosen)) == names


@pytest.mark.parametrize("chosen", ["3", "MIG-x", "GPU-z"])
def test_a_gpu_that_nobody_knows_is_told(chosen):
    assert visible_devices(GPUS, chosen) == NotBound(f"no device is known by {chosen!r} of CUDA_VISIBLE_DEVICES")


def put(root: Path, path, text=""):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_the_gpus_of_a_container_are_those_whose_device_it_was_given(tmp_path):
    for minor, bus, node in ((0, "3b", 0), (1, "5e", 0), (2, "af", 1)):
        address = f"0000:{bus}:00.0"
        text = f"Model: \t\t NVIDIA\nGPU UUID: \t GPU-{bus}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        put(tmp_path, f"proc/driver/nvidia/gpus/{address}/information", text)
        put(tmp_path, f"sys/bus/pci/devices/{address}/numa_node", f"{node}\n")
    put(tmp_path, "dev/nvidia0")
    put(tmp_path, "dev/nvidia2")
    assert gpus(tmp_path) == (Device("0000:3b:00.0", 0, "GPU-3b"), Device("0000:af:00.0", 1, "GPU-af"))
    for path, text in recorded(2, cores=1, threads=1, sockets=2, cores_a_cache=1).items():
        put(tmp_path, f"sys/devices/system/{path}", text)
    on = read_machine(tmp_path, "1")
    assert [device.address for device in on.devices] == ["0000:af:00.0"]
    assert {cpu.number for cpu in on.cpus} <= os.sched_getaffinity(0)
    assert read_machine(tmp_path, "9") == NotBound("no device is known by '9' of CUDA_VISIBLE_DEVICES")


def test_this_machine_says_where_its_cpus_are_or_that_it_does_not():
    on = read_machine()
    assert isinstance(on, NotBound) or set(bind(on, Binding.NODE, 0, 1).cpus) <= os.sched_getaffinity(0)
