"""A device that is played on the CPU: its copies run as late as a real device may run them."""

from __future__ import annotations

import threading

import torch
from torch import nn


class LateCopies:
    """Copies that run when the host waits for them, or when later work is ordered after them.

    On a real device, later work runs after the copies. Here the host itself is the device, so they have to run first.
    """

    def __init__(self, streams, copies):
        self._streams, self._copies, self._guard = streams, list(copies), threading.Lock()

    def order_before(self):
        self._streams.orders += 1
        self._run()

    def wait(self):
        self._streams.waiting_threads.append(threading.current_thread().name)
        self._run()

    def _run(self):
        with self._guard:
            for target, source in self._copies:
                target.copy_(source)
            self._copies.clear()


class LateStreams:
    """Plays a device that holds every tensor that is not contiguous. refuses: why its driver registers no pages."""

    def __init__(self, refuses=""):
        self.waiting_threads, self.orders, self._refuses = [], 0, refuses  # names of the threads that waited
        self.fails = False

    def holds(self, tensor):
        return not tensor.is_contiguous()

    def start(self, copies):
        if self.fails:
            raise RuntimeError("the device is out of memory")
        return LateCopies(self, copies)

    def registrar(self, device):
        return self

    def register(self, address, size):
        return self._refuses

    def unregister(self, address):
        """Nothing was registered anywhere."""

    def host_waits(self):
        """Count the waits of the thread that trains."""
        return self.waiting_threads.count(threading.main_thread().name)


def on_device(model):
    """Give a model's matrices another memory layout, so that LateStreams holds them and their optimizer state."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()
    return model


class Training:
    """A model whose matrices lie on the played device, with AdamW."""

    def __init__(self, width=64):
        torch.manual_seed(7)
        self.model = on_device(nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.width = width
        self.step()

    def step(self):
        self.model(torch.rand(4, self.width)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
