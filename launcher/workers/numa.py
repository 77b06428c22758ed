"""Chooses the CPUs of a training process for torch's --numa-binding: node, socket, exclusive or core-complex.

Without devices the processes are spread evenly over the NUMA nodes, neighbours together. If the machine does not tell
where its CPUs and devices are, the answer is NotBound and nothing is bound. Source:
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
    node: int
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
    """Build a machine from the texts of /sys. files: by path below /sys/devices/system. allowed: usable CPUs.

    A device with NUMA node -1, as on a machine with one node, counts as node 0.
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
    at = f"cpu/cpu{number}"
    cores = numbers(files.get(f"{at}/topology/thread_siblings_list", "")) or (number,)
    socket = files.get(f"{at}/topology/physical_package_id", "0").strip()
    largest, cache = -1, numbers(str(number))
    for index in range(8):
        level = files.get(f"{at}/cache/index{index}/level", "").strip()
        kind = files.get(f"{at}/cache/index{index}/type", "").strip()
        if level.isdecimal() and int(level) > largest and kind in ("Unified", "Data"):
            largest = int(level)
            cache = numbers(files.get(f"{at}/cache/index{index}/shared_cpu_list", "")) or (number,)
    return Cpu(number, node, int(socket) if socket.lstrip("-").isdecimal() else 0, min(cores), min(cache))


def visible(devices: Sequence[Device], chosen: str | None) -> tuple[Device, ...] | NotBound:
    """Select the devices that CUDA_VISIBLE_DEVICES names, in its order. chosen: its text, None if it is not set."""
    if chosen is None:
        return tuple(devices)
    found: list[Device] = []
    for word in (word.strip() for word in chosen.split(",") if word.strip()):
        if word.isdecimal() and int(word) < len(devices):
            found.append(devices[int(word)])
        elif matching := [each for each in devices if each.uuid and each.uuid.startswith(word)]:
            found.append(matching[0])
        else:
            return NotBound(f"no device is known by {word!r} of CUDA_VISIBLE_DEVICES")
    return tuple(found)


def bind(on: Machine, how: Binding, local_rank: int, processes: int) -> CpuSet | NotBound:
    """Choose the CPUs of process `local_rank` of `processes`. Its device is the one with that index.

    `exclusive` divides the cores of a node among its processes. With the other bindings, CPU sets may overlap.
    """
    places = _places(on, processes)
    if local_rank >= len(places):
        return NotBound(f"process {local_rank} has no device: {len(places)} are there")
    mine = places[local_rank]
    sharers = [rank for rank, node in enumerate(places) if node == mine]  # the processes on this node, in order
    node_cpus = [cpu for cpu in on.cpus if cpu.node == mine]
    if not node_cpus:
        return NotBound(f"process {local_rank}: none of the CPUs of NUMA node {mine} is ours")
    match how:
        case Binding.NODE:
            chosen = node_cpus
        case Binding.SOCKET:
            chosen = _in_socket(on, min(node_cpus, key=lambda cpu: cpu.number).socket)
        case Binding.EXCLUSIVE:
            return _exclusive_cpus(node_cpus, mine, sharers.index(local_rank), len(sharers))
        case Binding.CORE_COMPLEX:
            groups = _grouped(node_cpus, lambda cpu: cpu.cache)
            caches = sorted(groups, key=lambda cache: (-len(groups[cache]), cache))
            chosen = groups[caches[sharers.index(local_rank) % len(caches)]]
    return CpuSet(tuple(sorted(cpu.number for cpu in chosen)))


def _in_socket(on: Machine, socket: int) -> list[Cpu]:
    """List the CPUs of the NUMA nodes whose first CPU is in this socket."""
    nodes = {node for node in on.nodes if _first(on, node).socket == socket}
    return [cpu for cpu in on.cpus if cpu.node in nodes]


def _places(on: Machine, processes: int) -> tuple[int, ...]:
    """Return the NUMA node of each process: its device's, or spread evenly without devices."""
    if on.devices:
        return tuple(device.node for device in on.devices)
    nodes = on.nodes
    return tuple(nodes[rank * len(nodes) // processes] for rank in range(processes))


def _first(on: Machine, node: int) -> Cpu:
    return min((cpu for cpu in on.cpus if cpu.node == node), key=lambda cpu: cpu.number)


def _exclusive_cpus(node_cpus: Sequence[Cpu], node: int, at: int, sharers: int) -> CpuSet | NotBound:
    """Return the cores of a NUMA node that belong to one of its processes alone.

    at: index of the process among `sharers` processes on the node. NotBound if there are fewer cores than processes.
    """
    groups = _grouped(node_cpus, lambda cpu: cpu.core)
    each, more = divmod(len(groups), sharers)
    if each < 1:
        return NotBound(f"NUMA node {node} has {len(groups)} cores for {sharers} processes")
    start = at * each + min(at, more)
    cores = sorted(groups)[start : start + each + (1 if at < more else 0)]
    return CpuSet(tuple(sorted(cpu.number for core in cores for cpu in groups[core])))


def _grouped(cpus: Iterable[Cpu], by: Callable[[Cpu], int]) -> dict[int, list[Cpu]]:
    """Group CPUs by a number, such as that of their core."""
    groups: defaultdict[int, list[Cpu]] = defaultdict(list)
    for cpu in cpus:
        groups[by(cpu)].append(cpu)
    return dict(groups)


def numbers(text: str) -> tuple[int, ...]:
    """Parse a CPU list of the kernel: `0-2,4` is 0, 1, 2, 4. Invalid parts are skipped."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


_FILES = (
    "node/node*/cpulist",
    "cpu/cpu[0-9]*/topology/thread_siblings_list",
    "cpu/cpu[0-9]*/topology/physical_package_id",
    "cpu/cpu[0-9]*/cache/index*/level",
    "cpu/cpu[0-9]*/cache/index*/type",
    "cpu/cpu[0-9]*/cache/index*/shared_cpu_list",
)


def look(root: Path = Path("/"), chosen: str | None = None) -> Machine | NotBound:
    """Describe the machine. chosen: the text of CUDA_VISIBLE_DEVICES, None if it is not set."""
    base = root / "sys/devices/system"
    files = {str(file.relative_to(base)): text for glob in _FILES for file in base.glob(glob) if (text := _text(file))}
    devices = visible(gpus(root), chosen)
    if isinstance(devices, NotBound):
        return devices
    return machine(files, os.sched_getaffinity(0), devices)


def gpus(root: Path = Path("/")) -> tuple[Device, ...]:
    """List the NVIDIA GPUs of this container by PCI address. The driver may also list other GPUs of the host."""
    found = []
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        information = dict(line.split(":", 1) for line in _text(folder / "information").splitlines() if ":" in line)
        minor = information.get("Device Minor", "").strip()
        if (root / f"dev/nvidia{minor}").exists():
            node = _text(root / "sys/bus/pci/devices" / folder.name / "numa_node").strip() or "-1"
            found.append(Device(folder.name, int(node), information.get("GPU UUID", "").strip()))
    return tuple(found)


def _text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
