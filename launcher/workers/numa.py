"""Chooses the CPUs of a training process for torch's --numa-binding: node, socket, exclusive or core-complex.

Without devices the processes are spread evenly over the NUMA nodes, neighbours together. If the places of CPUs and
devices are unknown, the result is NotBound and no process is bound. Source:
torch/numa/binding.py, 2.15
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Binding(StrEnum):
    """Says how closely a process is bound to the place of its device."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical CPU that this process may use."""

    number: int
    node: int  # NUMA node
    socket: int
    core: int  # the lowest CPU that shares its core
    cache: int  # the lowest CPU that shares its largest cache


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that the processes may use."""

    address: str  # on the PCI bus
    node: int  # its NUMA node
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPUs and devices of the machine."""

    cpus: tuple[Cpu, ...]  # those this process may use
    devices: tuple[Device, ...] = ()  # by PCI address

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes of the usable CPUs."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))


@dataclass(frozen=True, slots=True)
class CpuSet:
    """The CPUs of one process, at least one."""

    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotBound:
    """The answer when no process is bound to CPUs, with the reason."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def machine(files: Mapping[str, str], allowed: Iterable[int], devices: Sequence[Device] = ()) -> Machine | NotBound:
    """Return the machine that the files of /sys describe; NotBound if they name no NUMA node of a usable CPU.

    files: text by path below /sys/devices/system. allowed: numbers of the usable CPUs. A device with NUMA node -1, as
    on a machine with one node, counts as node 0.
    """
    node_of: dict[int, int] = {}
    for path, text in files.items():
        parts = path.split("/")
        if parts[0] == "node" and parts[-1] == "cpulist" and parts[1].removeprefix("node").isdecimal():
            node_of |= dict.fromkeys(numbers(text), int(parts[1].removeprefix("node")))
    cpus = tuple(_cpu(files, number, node_of[number]) for number in sorted(allowed) if number in node_of)
    if not cpus:
        return NotBound("this machine does not say which CPU is on which NUMA node")
    return Machine(cpus, tuple(Device(each.address, max(each.node, 0), each.uuid) for each in devices))


def _cpu(files: Mapping[str, str], number: int, node: int) -> Cpu:
    """Return a CPU with its socket, core and largest data cache, as the files of /sys describe them.

    files: path -> content. Missing files give a core and a cache of its own, and socket 0.
    """
    folder = f"cpu/cpu{number}"
    cores = numbers(files.get(f"{folder}/topology/thread_siblings_list", "")) or (number,)
    socket = files.get(f"{folder}/topology/physical_package_id", "0").strip()
    largest, cache = -1, numbers(str(number))
    for index in range(8):
        level = files.get(f"{folder}/cache/index{index}/level", "").strip()
        kind = files.get(f"{folder}/cache/index{index}/type", "").strip()
        if level.isdecimal() and int(level) > largest and kind in ("Unified", "Data"):
            largest = int(level)
            cache = numbers(files.get(f"{folder}/cache/index{index}/shared_cpu_list", "")) or (number,)
    return Cpu(number, node, int(socket) if socket.lstrip("-").isdecimal() else 0, min(cores), min(cache))


def visible_devices(devices: Sequence[Device], chosen: str | None) -> tuple[Device, ...] | NotBound:
    """Return the devices that CUDA_VISIBLE_DEVICES names, in its order; NotBound for an unknown name.

    chosen: its text; None if it is not set, for all devices.
    """
    if chosen is None:
        return tuple(devices)
    selected: list[Device] = []
    for word in (word.strip() for word in chosen.split(",") if word.strip()):
        if word.isdecimal() and int(word) < len(devices):
            selected.append(devices[int(word)])
        elif matching := [each for each in devices if each.uuid and each.uuid.startswith(word)]:
            selected.append(matching[0])
        else:
            return NotBound(f"no device is known by {word!r} of CUDA_VISIBLE_DEVICES")
    return tuple(selected)


def bind(machine: Machine, binding: Binding, local_rank: int, processes: int) -> CpuSet | NotBound:
    """Choose the CPUs of process `local_rank` of `processes`. Its device is the one with that index.

    EXCLUSIVE divides the cores of a NUMA node among its processes. With the other bindings, CPU sets may overlap.
    NotBound if the process has no device, or its node no usable CPU or too few cores.
    """
    nodes = _nodes_of_processes(machine, processes)
    if local_rank >= len(nodes):
        return NotBound(f"process {local_rank} has no device: {len(nodes)} are there")
    node_of_process = nodes[local_rank]
    sharers = [
        rank for rank, node in enumerate(nodes) if node == node_of_process
    ]  # the processes on this node, in order
    node_cpus = [cpu for cpu in machine.cpus if cpu.node == node_of_process]
    if not node_cpus:
        return NotBound(f"process {local_rank}: none of the CPUs of NUMA node {node_of_process} is ours")
    match binding:
        case Binding.NODE:
            chosen = node_cpus
        case Binding.SOCKET:
            chosen = _in_socket(machine, min(node_cpus, key=lambda cpu: cpu.number).socket)
        case Binding.EXCLUSIVE:
            return _exclusive_cpus(node_cpus, node_of_process, sharers.index(local_rank), len(sharers))
        case Binding.CORE_COMPLEX:
            groups = _group_by(node_cpus, lambda cpu: cpu.cache)
            caches = sorted(groups, key=lambda cache: (-len(groups[cache]), cache))
            chosen = groups[caches[sharers.index(local_rank) % len(caches)]]
    return CpuSet(tuple(sorted(cpu.number for cpu in chosen)))


def _in_socket(machine: Machine, socket: int) -> list[Cpu]:
    """List the CPUs of the NUMA nodes whose first CPU is in this socket."""
    nodes = {node for node in machine.nodes if _first_cpu(machine, node).socket == socket}
    return [cpu for cpu in machine.cpus if cpu.node in nodes]


def _nodes_of_processes(machine: Machine, processes: int) -> tuple[int, ...]:
    """Return the NUMA node of each process: its device's, or spread evenly without devices."""
    if machine.devices:
        return tuple(device.node for device in machine.devices)
    nodes = machine.nodes
    return tuple(nodes[rank * len(nodes) // processes] for rank in range(processes))


def _first_cpu(machine: Machine, node: int) -> Cpu:
    """Return the usable CPU of a NUMA node with the lowest number."""
    return min((cpu for cpu in machine.cpus if cpu.node == node), key=lambda cpu: cpu.number)


def _exclusive_cpus(node_cpus: Sequence[Cpu], node: int, index: int, sharers: int) -> CpuSet | NotBound:
    """Return the cores of a NUMA node that belong to one of its processes alone.

    index: of the process among the `sharers` processes on the node, from 0. NotBound if there are fewer cores than
    processes.
    """
    groups = _group_by(node_cpus, lambda cpu: cpu.core)
    cores_per_process, remainder = divmod(len(groups), sharers)
    if cores_per_process < 1:
        return NotBound(f"NUMA node {node} has {len(groups)} cores for {sharers} processes")
    start = index * cores_per_process + min(index, remainder)
    cores = sorted(groups)[start : start + cores_per_process + (1 if index < remainder else 0)]
    return CpuSet(tuple(sorted(cpu.number for core in cores for cpu in groups[core])))


def _group_by(cpus: Iterable[Cpu], by: Callable[[Cpu], int]) -> dict[int, list[Cpu]]:
    """Group CPUs by a number such as that of their core. by: returns the number of a CPU."""
    groups: defaultdict[int, list[Cpu]] = defaultdict(list)
    for cpu in cpus:
        groups[by(cpu)].append(cpu)
    return dict(groups)


def numbers(text: str) -> tuple[int, ...]:
    """Parse a CPU list of the kernel: `0-2,4` is 0, 1, 2, 4. Invalid parts are skipped."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


_FILE_PATTERNS = (
    "node/node*/cpulist",
    "cpu/cpu[0-9]*/topology/thread_siblings_list",
    "cpu/cpu[0-9]*/topology/physical_package_id",
    "cpu/cpu[0-9]*/cache/index*/level",
    "cpu/cpu[0-9]*/cache/index*/type",
    "cpu/cpu[0-9]*/cache/index*/shared_cpu_list",
)


def read_machine(root: Path = Path("/"), chosen: str | None = None) -> Machine | NotBound:
    """Read the CPUs and devices of the machine from /sys and /proc below `root`.

    chosen: the text of CUDA_VISIBLE_DEVICES, None if it is not set. NotBound if that text names an unknown device, or
    if no NUMA node of a usable CPU is known.
    """
    base = root / "sys/devices/system"
    files = {
        str(file.relative_to(base)): text
        for glob in _FILE_PATTERNS
        for file in base.glob(glob)
        if (text := _text(file))
    }
    devices = visible_devices(gpus(root), chosen)
    if isinstance(devices, NotBound):
        return devices
    return machine(files, os.sched_getaffinity(0), devices)


def gpus(root: Path = Path("/")) -> tuple[Device, ...]:
    """List the NVIDIA GPUs of this container by PCI address; () without a driver. root: the folder with /proc and /dev.

    The driver may also list other GPUs of the host; those without a device file here are omitted.
    """
    devices = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        information = dict(line.split(":", 1) for line in _text(folder / "information").splitlines() if ":" in line)
        minor = information.get("Device Minor", "").strip()
        if (root / f"dev/nvidia{minor}").exists():
            node = _text(root / "sys/bus/pci/devices" / folder.name / "numa_node").strip() or "-1"
            devices.append(Device(folder.name, int(node), information.get("GPU UUID", "").strip()))
    return tuple(devices)


def _text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
