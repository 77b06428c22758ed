"""Reports what the machine is: card, driver, torch, PCIe, host memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import torch

from hack.gpu.figures import arguments

_QUERY = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"


def main() -> int:
    """Report versions, CPU and memory, and on a GPU its name and settings. Return 0."""
    args = arguments()
    args.report("python", platform.python_version())
    args.report("torch", str(torch.__version__))
    args.report("cores", os.cpu_count() or 0)
    args.report("host_memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, "GiB")
    if args.device == "cpu":
        return 0
    args.report("cuda", str(torch.version.cuda))
    args.report("card", torch.cuda.get_device_name(0))
    args.report("nccl", ".".join(map(str, torch.cuda.nccl.version())))
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    args.report(_QUERY, subprocess.check_output(command, text=True, timeout=20).strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
