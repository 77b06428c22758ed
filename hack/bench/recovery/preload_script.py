"""Trains in a trial of recovery.py: DDP over gloo, a line for the first step of each life.

Argument: a file, to which each life adds its round, rank, pid, and when its first step was done.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = True
while True:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    if first:
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.environ['TURNOUT_ROUND']} {os.environ['RANK']} {os.getpid()} {time.monotonic()}\n")
        first = False
    time.sleep(0.05)
