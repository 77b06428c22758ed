"""A plain training loop of torch over gloo, without a line of ours. In its first life rank 1 does not begin one of the
collectives, and yet every stack is the same: what a rank waits in is no Python. Arguments: the crew's folder.
"""

import os
import time

import torch
import torch.distributed as dist

STEPS, HANGS_AT = 60, 30


def average(step, grad):
    late = step == HANGS_AT and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    time.sleep(3_600) if late else dist.group.WORLD.allreduce([grad]).wait()


dist.init_process_group("gloo")
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(STEPS):
    weight.sum().backward()
    average(step, weight.grad)
    optimizer.step()
dist.destroy_process_group()
