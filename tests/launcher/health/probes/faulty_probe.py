"""A probe on a node with faults, which the environment names: the probe itself is the one that users run."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from turnout.launcher.health.probes.__main__ import main


def slowly(real, seconds):
    def call(*args, **kwargs):
        time.sleep(seconds)
        return real(*args, **kwargs)

    return call


def stuck(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGSTOP)


def broken(*_args, **_kwargs):
    raise RuntimeError("an error of this device")


for fault in os.environ["FAULTS"].split(","):
    match fault:
        case "slow product":
            torch.matmul = slowly(torch.matmul, 0.05)
        case "broken product":
            torch.matmul = broken
        case "stuck all-reduce":
            dist.all_reduce = stuck
        case "clock ahead":
            time.time = lambda real=time.time: real() + 3600

sys.exit(main())
