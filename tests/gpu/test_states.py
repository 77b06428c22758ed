"""States of a device come back to the last bit, whatever their dtype, layout and stream."""

import pytest
import torch

from turnout.launcher.checkpoint.engine import rng


def raw(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def tensor(device, dtype=torch.float32):
    return torch.randint(0, 100, (6, 8), device=device).to(dtype)


@pytest.mark.parametrize("overlap", [False, True], ids=["blocking", "overlapped"])
@pytest.mark.parametrize(
    "state_of",
    [
        pytest.param(lambda device: {"w": tensor(device, torch.bfloat16)}, id="bf16"),
        pytest.param(lambda device: {"w": tensor(device, torch.float8_e4m3fn)}, id="fp8 of inference"),
        pytest.param(lambda device: {"w": tensor(device, torch.float8_e5m2)}, id="fp8 of gradients"),
        pytest.param(lambda device: {"w": tensor(device).t()}, id="a transposed view"),
        pytest.param(lambda device: {"w": tensor(device)[::2, 1:]}, id="a part of a tensor"),
        pytest.param(
            lambda device: {"w": (full_tensor := tensor(device)), "row": full_tensor[2]}, id="two views of one storage"
        ),
        pytest.param(lambda device: {"w": (tied := tensor(device)), "head": tied}, id="tied weights"),
        pytest.param(lambda device: {"w": tensor(device), "step": torch.tensor(3)}, id="a tensor on the host beside"),
        pytest.param(lambda device: {"w": torch.empty(0, 4, device=device)}, id="an empty tensor"),
    ],
)
def test_a_state_comes_back_to_the_last_bit(make, tmp_path, device, state_of, overlap):
    state, checkpoints = state_of(device), make(tmp_path)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device=device))], lr=0.1)
    checkpoints.prepare(state)
    checkpoints.wait()
    for step in (1, 2, 3):  # by then every generation has pages
        checkpoints.save(step, state, disk=False, overlap=optimizer if overlap else ())
    found = checkpoints.load().state
    assert list(found) == list(state)
    for name, saved in state.items():
        assert found[name].dtype is saved.dtype
        assert torch.equal(raw(found[name]), raw(saved)), name


def test_the_devices_random_numbers_go_on_where_they_were(device):
    torch.rand(3, device=device)
    text = rng.encode_state(0)
    expected = torch.rand(5, device=device)
    torch.rand(7, device=device)
    assert rng.restore(text, 0)
    assert torch.equal(torch.rand(5, device=device), expected)


@pytest.mark.gpu
def test_a_save_holds_what_the_stream_that_called_it_had_queued(make, tmp_path):
    weight = torch.zeros(1 << 20, device="cuda")
    checkpoints, stream = make(tmp_path), torch.cuda.Stream()
    checkpoints.prepare({"w": weight})
    checkpoints.wait()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        weight.add_(1)
        checkpoints.save(1, {"w": weight}, disk=False)
    assert checkpoints.load().state["w"].min() == 1
