"""Which CPUs a training process is bound to: node, socket, exclusive or core-complex, as torch's --numa-binding has it.

Without devices the processes are spread over the NUMA nodes evenly, neighbours together. A machine that does not say
where its CPUs and devices are is a refusal, not an error: nothing is bound then. What /sys says is read in shell/.
Source: torch/numa/binding.py, 2.15
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Binding(StrEnum):
    """How closely a process is tied to its device's place."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU that we may run on. core, cache: the lowest CPU that shares its core, its largest cache."""

    number: int
    node: int
    socket: int
    core: int
    cache: int


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator that the processes may use. node: the NUMA node it is on."""

    address: str  # on the PCI bus
    node: int
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is bound to what. cpus: those we may run on; devices: in the order of their PCI addresses."""

    cpus: tuple[Cpu, ...]
    devices: tuple[Device, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes on which we have CPUs."""
        return tuple(sorted({cpu.node for cpu in self.cpus}))


@dataclass(frozen=True, slots=True)
class Bound:
    """The CPUs of one process, never none."""

    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing is bound, and why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


def machine(files: Mapping[str, str], allowed: Iterable[int], devices: Sequence[Device] = ()) -> Machine | Refusal:
    """Read a machine from the texts of /sys. files: by path below /sys/devices/system. allowed: our CPUs.

    A node that is not numbered (-1: a machine with one) is node 0.
    """
    node_of: dict[int, int] = {}
    for path, text in files.items():
        parts = path.split("/")
        if parts[0] == "node" and parts[-1] == "cpulist" and parts[1].removeprefix("node").isdecimal():
            node_of |= dict.fromkeys(numbers(text), int(parts[1].removeprefix("node")))
    cpus = tuple(_cpu(files, number, node_of[number]) for number in sorted(allowed) if number in node_of)
    if not cpus:
        return Refusal("this machine does not say which CPU is on which NUMA node")
    return Machine(cpus, tuple(Device(each.address, max(each.node, 0), each.uuid) for each in devices))


def _cpu(files: Mapping[str, str], number: int, node: int) -> Cpu:
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


def visible(devices: Sequence[Device], chosen: str | None) -> tuple[Device, ...] | Refusal:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order. chosen: its text, None when it is not set."""
    if chosen is None:
        return tuple(devices)
    found: list[Device] = []
    for word in (word.strip() for word in chosen.split(",") if word.strip()):
        if word.isdecimal() and int(word) < len(devices):
            found.append(devices[int(word)])
        elif matching := [each for each in devices if each.uuid and each.uuid.startswith(word)]:
            found.append(matching[0])
        else:
            return Refusal(f"no device is known by {word!r} of CUDA_VISIBLE_DEVICES")
    return tuple(found)


def bind(on: Machine, how: Binding, local_rank: int, processes: int) -> Bound | Refusal:
    """Choose the CPUs of process `local_rank` of `processes`. Its device is the one of that index.

    Exclusive shares the cores of a node among its processes, each once; the others may overlap.
    """
    places = _places(on, processes)
    if local_rank >= len(places):
        return Refusal(f"process {local_rank} has no device: {len(places)} are there")
    mine = places[local_rank]
    beside = [rank for rank, node in enumerate(places) if node == mine]  # the processes on this node, in order
    here = [cpu for cpu in on.cpus if cpu.node == mine]
    if not here:
        return Refusal(f"process {local_rank}: none of the CPUs of NUMA node {mine} is ours")
    match how:
        case Binding.NODE:
            chosen = here
        case Binding.SOCKET:
            sockets = {min(here, key=lambda cpu: cpu.number).socket}
            homes = {node for node in on.nodes if _first(on, node).socket in sockets}
            chosen = [cpu for cpu in on.cpus if cpu.node in homes]
        case Binding.EXCLUSIVE:
            return _exclusive(here, mine, beside.index(local_rank), len(beside))
        case Binding.CORE_COMPLEX:
            groups = _grouped(here, lambda cpu: cpu.cache)
            caches = sorted(groups, key=lambda cache: (-len(groups[cache]), cache))
            chosen = groups[caches[beside.index(local_rank) % len(caches)]]
    return Bound(tuple(sorted(cpu.number for cpu in chosen)))


def _places(on: Machine, processes: int) -> tuple[int, ...]:
    """The NUMA node of each process: that of its device, else spread evenly."""
    if on.devices:
        return tuple(device.node for device in on.devices)
    nodes = on.nodes
    return tuple(nodes[rank * len(nodes) // processes] for rank in range(processes))


def _first(on: Machine, node: int) -> Cpu:
    return min((cpu for cpu in on.cpus if cpu.node == node), key=lambda cpu: cpu.number)


def _exclusive(here: Sequence[Cpu], node: int, at: int, sharers: int) -> Bound | Refusal:
    groups = _grouped(here, lambda cpu: cpu.core)
    each, more = divmod(len(groups), sharers)
    if each < 1:
        return Refusal(f"NUMA node {node} has {len(groups)} cores for {sharers} processes")
    start = at * each + min(at, more)
    cores = sorted(groups)[start : start + each + (1 if at < more else 0)]
    return Bound(tuple(sorted(cpu.number for core in cores for cpu in groups[core])))


def _grouped(cpus: Iterable[Cpu], by: Callable[[Cpu], int]) -> dict[int, list[Cpu]]:
    groups: defaultdict[int, list[Cpu]] = defaultdict(list)
    for cpu in cpus:
        groups[by(cpu)].append(cpu)
    return dict(groups)


def numbers(text: str) -> tuple[int, ...]:
    """Read a list of the kernel's: `0-2,4` is 0, 1, 2, 4. What is no number is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
