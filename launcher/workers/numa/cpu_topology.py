"""Reads what /sys and /proc tell about this machine's CPUs, NUMA nodes and GPUs; binding.py interprets it."""

from __future__ import annotations

import os
from pathlib import Path

from turnout.launcher.workers.numa.binding import Device, Machine, NotBound, machine, visible

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
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
