"""The launcher and its memory checkpoints on a real GPU."""

import gc
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hack.gpu.runs import run
from turnout.launcher.accelerator import CudaRegistrar, used_memory
from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.engine.memory_saver import PinnedPages
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, Identity
from turnout.launcher.health.model import ProbeStage
from turnout.launcher.health.probe_messages import ProbePlan, encode, read_report

SECOND = 1_500_000_000  # cycles of a kernel that does nothing, about a second


class Training:
    """A model of one matrix on the GPU, with Adam."""

    def __init__(self, width=2_048):
        self.model = torch.nn.Linear(width, width, bias=False, device="cuda")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, fused=True)
        self.width = width
        self.step()

    def step(self):
        self.model(torch.rand(8, self.width, device="cuda")).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def prepared(make, folder, state):
    checkpoints = make(folder)
    checkpoints.prepare(state)
    checkpoints.wait()
    return checkpoints


def on_a_thread(call):
    """Call it on a thread of its own: torch reports a failed call at the next kernel of the thread that made it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.gpu
class TestPages:
    def test_a_mapping_is_registered_while_a_kernel_runs_until_the_end(self, memory, caplog):
        caplog.set_level("INFO", "turnout.checkpoint")
        arena, size = Arena.make(memory, Identity("run", "worker", 0, boot_id(), 2)), 256 * PAGE_BYTES
        registrar, pages = CudaRegistrar(torch.device("cuda", 0)), PinnedPages(2)
        torch.cuda._sleep(SECOND)
        pages.prepare(arena, size, registrar)
        pages.wait()
        view = arena.map(0, size)
        assert pages.is_registered(view, 0)
        assert "memory_registered" in [each.message for each in caplog.records]
        pages.close()
        address = address_of(view)
        assert on_a_thread(lambda: int(torch.cuda.cudart().cudaHostUnregister(address))) != 0
        del view
        arena.close()
        torch.cuda.synchronize()

    def test_a_refusal_of_the_driver_leaves_no_error_for_the_next_kernel(self):
        registrar = CudaRegistrar(torch.device("cuda", 0))
        assert on_a_thread(lambda: registrar.register(4096, 4096)).startswith("cudaHostRegister")
        assert torch.ones(4, device="cuda").sum().item() == 4


@pytest.mark.gpu
class TestOverlap:
    def test_a_save_returns_while_the_device_is_busy(self, make, tmp_path):
        training = Training()
        checkpoints = prepared(make, tmp_path, training.state())
        checkpoints.save(1, training.state(), disk=False, overlap=training.optimizer)
        training.step()
        checkpoints.wait()
        expected = training.model.weight.detach().cpu()
        torch.cuda._sleep(2 * SECOND)
        busy = torch.cuda.Event()
        busy.record()
        checkpoints.save(2, training.state(), disk=False, overlap=training.optimizer)
        training.step()
        assert not busy.query(), "neither the save nor the step has waited for the device"
        found = checkpoints.load()
        assert found.step == 2
        assert torch.equal(found.state["model"]["weight"], expected)

    def test_many_saves_are_what_was_there_when_they_were_asked_for(self, make, tmp_path):
        training = Training()
        checkpoints = prepared(make, tmp_path, training.state())
        for step in range(1, 20):
            before = training.model.weight.detach().clone()
            checkpoints.save(step, training.state(), disk=False, overlap=training.optimizer)
            training.step()
            if step % 5 == 0:
                found = checkpoints.load()
                assert found.step == step
                assert torch.equal(found.state["model"]["weight"], before.cpu())
        assert checkpoints.stats().dropped == 0

    def test_a_model_that_goes_away_while_it_is_copied_is_saved_as_it_was(self, make, tmp_path):
        training = Training()
        checkpoints = prepared(make, tmp_path, training.state())
        expected = training.model.weight.detach().cpu()
        torch.cuda._sleep(SECOND)
        checkpoints.save(1, training.state(), disk=False, overlap=training.optimizer)
        del training
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.full((2_048, 2_048), 7.0, device="cuda") for _ in range(8)]
        assert torch.equal(checkpoints.load().state["model"]["weight"], expected)
        assert len(others) == 8


@pytest.mark.gpu
class TestHealth:
    def test_the_probe_measures_the_gpu(self):
        plan = ProbePlan(rank=0, processes=1, members=1, address="127.0.0.1", port=0)
        command = [sys.executable, "-m", "turnout.launcher.health.probes", encode(plan).decode()]
        parent = subprocess.run(
            [
                sys.executable,
                "-c",
                "import os,subprocess,sys; sys.exit(subprocess.call(sys.argv[1:]+[str(os.getpid())]))",
                *command,
            ],
            capture_output=True,
            timeout=100,
            check=False,
        )
        report = read_report(parent.stdout.splitlines()[-1])
        assert (report.stage, report.fault) == (ProbeStage.DONE, "")
        assert 0 < report.compute_s < 1
        assert 0 <= report.device_used <= 1

    @pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="not run: nvidia-smi, which reads NVML")
    def test_the_memory_in_use_is_what_nvml_says(self):
        block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        query = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits", "--id=0"]
        used, total = map(float, subprocess.check_output(query, text=True, timeout=30).split(","))
        assert used_memory(block.device) == pytest.approx(used / total, abs=0.02)


def test_a_process_forked_from_the_parent_that_has_torch_uses_the_device(tmp_path, memory, device):
    code, events, log = run(tmp_path, memory, "adds", device, "--nproc-per-node=1")
    assert code == 0, log
    assert [(each["event"], each["total"], each["forked"]) for each in events] == [("added", 499_500, True)]


def test_a_worker_killed_in_the_middle_of_a_kernel_starts_again(tmp_path, memory, device):
    code, events, log = run(tmp_path, memory, "spins", device, "--nproc-per-node=1", "--max-restarts=1")
    assert code == 0, log
    assert [each["event"] for each in events] == ["spinning", "back"]


def test_a_hang_in_a_kernel_is_found_and_its_rank_is_named(tmp_path, memory, device):
    options = ("--nproc-per-node=2", "--max-restarts=1", "--hang-timeout=4", "--on-hang=restart")
    code, events, log = run(tmp_path, memory, "hangs", device, *options, limit_s=200)
    assert code == 0, log
    assert [each["rank"] for each in events if each["event"] == "hangs"] == [1]
    assert {each["step"] for each in events if each["event"] == "step" and each["life"] == 1} == set(range(1, 21))
    assert "process_hung" in log
    assert "rank 1" in log, log
