"""Pages are mapped ahead of the first save, and a GPU's driver knows whole mappings for as long as they are used."""

import ctypes
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from turnout.launcher.accelerator import CudaRegistrar
from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.engine.memory_saver import PinnedPages
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, Identity
from turnout.launcher.errors import NoMemory

SIZE = 16 * PAGE_BYTES


class Driver:
    """Knows what it is told. At each call the bytes are mapped: it looks at the first and the last of them."""

    def __init__(self, why=""):
        self.known, self.told, self._why = {}, [], why

    def register(self, address, size):
        assert not any(start < address + size and address < start + other for start, other in self.known.items())
        self.told.append(("register", size))
        if not self._why:
            self.known[address] = size
            self._look(address)
        return self._why

    def unregister(self, address):
        self._look(address)
        self.told.append(("unregister", self.known.pop(address)))

    def _look(self, address):
        assert (torch.frombuffer(_at(address, self.known[address]), dtype=torch.uint8)[[0, -1]] >= 0).all()


def _at(address, size):
    return (ctypes.c_char * size).from_address(address)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def arena(folder):
    new_arena = Arena.make(folder, Identity("run", "worker", 0, boot_id(), 3))
    yield new_arena
    new_arena.close()


def had(pages, arena, size, driver=None):
    pages.prepare(arena, size, driver)
    pages.wait()


def test_without_a_gpu_nobody_is_told(arena):
    pages = PinnedPages(3)
    had(pages, arena, SIZE)
    assert all(arena.is_mapped(generation, SIZE) for generation in range(3))
    pages.close()


def test_a_driver_knows_each_generation_whole_and_once(arena):
    pages, driver = PinnedPages(3), Driver()
    for _ in range(3):
        had(pages, arena, SIZE, driver)
    all_generations = [(address_of(arena.map(generation, SIZE)), SIZE) for generation in range(3)]
    assert sorted(driver.known.items()) == sorted(all_generations)
    assert driver.told == [("register", SIZE)] * 3
    pages.close()
    assert driver.known == {}


def test_pages_from_before_the_first_gpu_tensor_are_registered_then(arena):
    pages, driver = PinnedPages(3), Driver()
    had(pages, arena, SIZE)
    had(pages, arena, SIZE, driver)
    assert driver.told == [("register", SIZE)] * 3
    pages.close()


def test_a_mapping_that_grows_is_forgotten_before_it_goes(arena):
    pages, driver = PinnedPages(3), Driver()
    had(pages, arena, SIZE, driver)
    had(pages, arena, 2 * SIZE, driver)
    assert driver.told == [("register", SIZE)] * 3 + [("unregister", SIZE), ("register", 2 * SIZE)] * 3
    all_generations = [(address_of(arena.map(generation, SIZE)), 2 * SIZE) for generation in range(3)]
    assert sorted(driver.known.items()) == sorted(all_generations), (
        "no copy begins in registered pages and ends in others"
    )
    pages.close()


def test_another_arena_takes_the_place_of_the_first(arena, folder):
    pages, driver = PinnedPages(3), Driver()
    had(pages, arena, SIZE, driver)
    other = Arena.make(folder, Identity("run", "worker", 1, boot_id(), 3))
    had(pages, other, SIZE, driver)
    assert driver.told == [("register", SIZE)] * 3 + [("unregister", SIZE)] * 3 + [("register", SIZE)] * 3
    pages.close()
    other.close()


def test_a_driver_that_refuses_is_told_of_once_and_asked_again_for_more(arena, caplog):
    pages, driver = PinnedPages(3), Driver(why="cudaHostRegister: error 2")
    for size in (SIZE, SIZE, 2 * SIZE):
        had(pages, arena, size, driver)
    assert driver.told == [("register", SIZE), ("register", 2 * SIZE)]
    assert [(each.message, each.why) for each in caplog.records] == [
        ("memory_not_registered", "cudaHostRegister: error 2")
    ] * 2
    pages.close()


class SlowArena:
    """Maps pages once the test says so; the first of them not at all."""

    identity = Identity("run", "worker", 0, "boot", 2)

    def __init__(self):
        self.mapped, self.proceeds, self._has_failed = [], threading.Event(), False

    def populate(self, generation, size):
        self.proceeds.wait(10)
        if not self._has_failed:
            self._has_failed = True
            raise NoMemory("memory is short for a moment")
        self.mapped.append((generation, size))
        return True


def test_the_wait_for_pages_has_a_limit():
    pages, arena = PinnedPages(2), SlowArena()
    assert pages.wait(0.01), "nothing is mapped"
    pages.prepare(arena, SIZE)
    assert not pages.wait(0.01)
    arena.proceeds.set()
    assert pages.wait()


def test_pages_without_memory_are_mapped_at_the_next_save():
    pages, arena = PinnedPages(2), SlowArena()
    arena.proceeds.set()
    for _ in range(3):
        had(pages, arena, SIZE)
    assert arena.mapped == [(0, SIZE), (1, SIZE)]


def test_what_no_driver_takes_is_a_reason_and_no_error():
    """The real runtime is asked: there is no driver here, or no memory at that address."""
    assert CudaRegistrar(torch.device("cuda", 0)).register(0, 1) != ""
