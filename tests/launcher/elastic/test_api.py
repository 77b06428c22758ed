"""The exchange between a script and the launcher: which torch, which strategies, and that torch is not imported."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from turnout.launcher.cli.to_settings import resize_warning
from turnout.launcher.elastic.gradients import synced
from turnout.launcher.torch_version import TorchTooOld, check_torch, too_old_message


@pytest.mark.parametrize(
    ("torch", "old"),
    [
        pytest.param("1.10.0", True, id="the one that cannot shrink"),
        pytest.param("1.10.0+cu113", True, id="as its wheel calls itself"),
        pytest.param("2.5.1", True, id="just too old"),
        pytest.param("2.6.0", False, id="just new enough"),
        pytest.param("2.6.0a0+git1234", False, id="built from source"),
        pytest.param("2.15.0+cu132", False, id="two digits are more than one"),
        pytest.param("3.0", False, id="the next one"),
        pytest.param("main", False, id="a build of one's own has the benefit of the doubt"),
    ],
)
def test_the_oldest_torch_is_2_6(torch, old):
    message = too_old_message(torch)
    assert (message is not None) == old
    if message:
        assert f"torch {torch} is too old: 2.6 or newer is needed" in message
        assert "torch>=2.6" in message


def installed(folder, torch):
    """A distribution of that version, as pip would have left it."""
    info = folder / f"oldtorch-{torch}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: oldtorch\nVersion: {torch}\n")


@pytest.mark.contract("VE-22")
def test_an_old_torch_is_refused_before_anything_starts(tmp_path, monkeypatch):
    installed(tmp_path, "1.10.0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TorchTooOld, match=r"torch 1\.10\.0 is too old"):
        check_torch("oldtorch")


def test_the_torch_that_is_here_will_do_and_none_is_no_fault():
    assert version("torch")
    check_torch()
    check_torch("no-such-distribution")


@pytest.mark.contract("DL-91")
@pytest.mark.parametrize(
    ("strategy", "minimum", "maximum", "message"),
    [
        pytest.param("ddp", 1, 4, None, id="DDP may be resized"),
        pytest.param("DDP", 1, 4, None, id="in any case"),
        pytest.param("DistributedDataParallel", 1, 4, None, id="by its long name"),
        pytest.param("", 1, 4, None, id="nothing is declared"),
        pytest.param("fsdp", 4, 4, None, id="FSDP at one size"),
        pytest.param("deepspeed", 2, 2, None, id="DeepSpeed at one size"),
        pytest.param("fsdp", 1, 4, "torch.distributed.checkpoint", id="FSDP"),
        pytest.param("FSDP2", 1, 4, "torch.distributed.checkpoint", id="FSDP2"),
        pytest.param("fully-sharded", 1, 4, "torch.distributed.checkpoint", id="FSDP by another name"),
        pytest.param("deepspeed_stage_3", 1, 4, "universal", id="DeepSpeed"),
        pytest.param("zero-1", 1, 4, "universal", id="ZeRO"),
        pytest.param("Megatron-LM", 1, 4, "groups of ranks", id="Megatron"),
        pytest.param("horovod", 1, 4, "not known", id="one that nobody has tried"),
    ],
)
def test_resizing_is_promised_for_ddp_only(strategy, minimum, maximum, message):
    warning = resize_warning(strategy, minimum, maximum)
    assert (warning is None) == (message is None)
    if message:
        assert warning.startswith(
            f"strategy {strategy} with {minimum} to {maximum} workers: resizing is promised for DDP"
        )
        assert message in warning
        assert warning.endswith("give min and max the same number.")


class Plain:
    """A model that nobody wrapped."""


def test_a_model_that_nobody_wrapped_has_nothing_to_synchronise():
    for sync in (False, True):
        with synced(Plain(), sync):
            pass


def test_importing_what_a_script_needs_brings_neither_torch_nor_a_network():
    modules = [
        "turnout.launcher.elastic.batch",
        "turnout.launcher.elastic.sampler",
        "turnout.launcher.elastic.lr_scaling",
        "turnout.launcher.elastic.gradients",
        "turnout.launcher.cli.to_settings",
    ]
    modules += ["turnout.launcher.torch_version", "turnout.launcher.torch_version"]
    code = f"import sys, {', '.join(modules)}; print({{'torch', 'kubernetes', 'aiohttp'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
