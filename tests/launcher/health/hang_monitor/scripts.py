"""The scripts that processes of the hung world run."""

REDUCES = """
import time
import torch
import torch.distributed as dist
from turnout.launcher.elastic.steps import Steps

def fetch():
    time.sleep(3_600)

dist.init_process_group("gloo")
steps = Steps()
for step in steps.count():
    if step == 30 and dist.get_rank() == 2:
        fetch()
    dist.all_reduce(torch.ones(4))
    steps.done(step)
"""
UNMARKED = """
import time
import torch

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(25):
    weight.sum().backward()
    optimizer.step()
print("done", flush=True)
time.sleep(3_600)
"""
COMPILES = """
import os
import time
import torch
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.health.hang_monitor.progress import SharedCounters

words, seen, steps = SharedCounters(os.environ["TURNOUT_PROGRESS_FILE"]), [], Steps()

def backend(graph, inputs):
    seen.append(words.name())
    return graph.forward

model = torch.compile(lambda x, k: x * k, backend=backend, dynamic=False)
for step in range(3):
    model(torch.ones(2 + step // 2), 3)
    steps.done(step)
print(seen, repr(words.name()), flush=True)
time.sleep(3_600)
"""
