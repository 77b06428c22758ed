"""With torch imported ahead: what it and numpy keep per process is each process's own, and its workers work."""

import os

import pytest
import pytest_asyncio

from tests.launcher.workers.testbed import WorkerTestbed
from turnout.launcher.workers.forkserver.server import DEFAULT
from turnout.launcher.workers.worker_spec import CommandKind

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def testbed(tmp_path_factory):
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    testbed = WorkerTestbed(tmp_path_factory.mktemp("torch"), preload=(*DEFAULT, "numpy"), env=env)
    yield testbed
    await testbed.processes.close()


async def test_a_fork_is_a_fresh_process_to_torch_and_numpy(testbed):
    """OMP_NUM_THREADS is not set: numpy has threads at import, which its own handler ends before a fork."""
    text = """
        import numpy, os, sys, torch
        print(numpy.random.rand(), torch.initial_seed(), torch.rand(1).item(), torch.cuda._is_in_bad_fork())
        (numpy.ones((600, 600)) @ numpy.ones((600, 600))).sum(), (torch.ones(900, 900) @ torch.ones(900, 900)).sum()
        print(torch.get_num_threads(), len(os.listdir("/proc/self/task")) > 1 or os.cpu_count() == 1)
        sys.stdout.flush(); os._exit(0)
    """
    ended = await testbed.run(*(testbed.program(text, local_rank=rank) for rank in range(2)))
    assert ([each.code for each in ended], testbed.why, testbed.err()) == ([0, 0], [], "")
    first, second = (testbed.out(rank).split() for rank in range(2))
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert first[1] == "67280421310721"
    assert first[3:] == ["False", str(len(os.sched_getaffinity(0))), "True"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_the_workers_of_a_data_loader_work(testbed, method):
    text = f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self):
                return 6
            def __getitem__(self, at):
                return torch.tensor([at * at])
        if __name__ == "__main__":
            loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context={method!r})
            print([batch.flatten().tolist() for batch in loader])
    """
    (exited,) = await testbed.run(testbed.program(text))
    assert (exited.code, testbed.out(), testbed.why) == (0, "[[0, 1], [4, 9], [16, 25]]\n", []), testbed.err()


async def test_what_record_of_torch_leaves_is_told(testbed):
    text = """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("of the user")
        main()
    """
    file = str(testbed.root / "error.json")
    (exited,) = await testbed.run(testbed.program(text, env={"TORCHELASTIC_ERROR_FILE": file}, error_file=file))
    assert exited.code == 1
    assert exited.error.startswith("ValueError: of the user\n  File ")
    assert exited.error.endswith('raise ValueError("of the user")')
    assert testbed.why == []


async def test_run_path_is_what_torchrun_makes_of_it(testbed):
    file = str(testbed.root / "path.json")
    script = testbed.script("import sys; print(__name__, sys.argv[1:]); raise ValueError('in the file')")
    order = testbed.order(
        script, "-x", how=CommandKind.RUN_PATH, env={"TORCHELASTIC_ERROR_FILE": file}, error_file=file
    )
    (exited,) = await testbed.run(order)
    assert (exited.code, testbed.out(), testbed.why) == (1, "__main__ ['-x']\n", ["--run-path"])
    assert exited.error.startswith("ValueError: in the file")


async def test_imports_of_a_first_step_are_there_in_the_first_life(testbed):
    """DDP and optimizers import torch._dynamo, for seconds of a core in each process: a recovery has no time for it."""
    text = """
        import sys, torch
        before = set(sys.modules)
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from turnout import Checkpointer
        late = [name for name in set(sys.modules) - before if name.startswith("torch.")]
        print(late, torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized())
    """
    (exited,) = await testbed.run(testbed.program(text))
    assert (exited.code, testbed.out(), testbed.why) == (0, "[] False False\n", []), testbed.err()
    assert testbed.entries("preload_failed") == []
