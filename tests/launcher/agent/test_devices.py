"""How many training processes --nproc-per-node=gpu, xpu and auto start on a machine."""

import pytest

from turnout.launcher.agent.start_agent import count_devices
from turnout.launcher.settings import Devices

NVIDIA, INTEL = "0x10de\n", "0x8086\n"


@pytest.fixture
def machine(tmp_path):
    """/dev and /sys/class/drm with two GPUs of NVIDIA and three of Intel, one of them not in the container."""
    dev, drm = tmp_path / "dev", tmp_path / "drm"
    (dev / "dri").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "dri/card0", "dri/renderD128", "dri/renderD129", "dri/renderD131"):
        (dev / name).touch()
    for number, vendor in {128: NVIDIA, 129: INTEL, 130: INTEL, 131: INTEL}.items():
        (drm / f"renderD{number}/device").mkdir(parents=True)
        (drm / f"renderD{number}/device/vendor").write_text(vendor)
    return dev, drm


@pytest.mark.parametrize(
    ("kind", "visible", "count"),
    [
        pytest.param(Devices.GPU, None, 2, id="the files of NVIDIA"),
        pytest.param(Devices.AUTO, None, 2, id="auto"),
        pytest.param(Devices.GPU, "0,1,3", 3, id="what CUDA shows"),
        pytest.param(Devices.GPU, "", 0, id="CUDA shows none"),
        pytest.param(Devices.AUTO, "-1", 0, id="CUDA shows none, as often written"),
        pytest.param(Devices.GPU, "0, 1,-1,2", 2, id="CUDA ignores what follows an invalid entry"),
        pytest.param(Devices.GPU, "1,,2", 1, id="an empty entry is invalid"),
        pytest.param(Devices.GPU, "NoDevFiles", 0, id="no device, as NVIDIA's container runtime says"),
        pytest.param(Devices.GPU, "GPU-8932f937,GPU-46d0", 2, id="devices by their names"),
        pytest.param(Devices.GPU, "MIG-8932f937,1", 1, id="names and numbers are not mixed"),
        pytest.param(Devices.GPU, "0,1,0", 0, id="CUDA shows none if one is listed twice"),
        pytest.param(Devices.XPU, None, 2, id="those of Intel that the container has"),
        pytest.param(Devices.XPU, "0", 2, id="no variable of CUDA"),
    ],
)
def test_the_devices_of_a_machine_are_counted(machine, kind, visible, count):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_devices(kind, environ, *machine) == count


@pytest.mark.parametrize("kind", [Devices.GPU, Devices.XPU])
def test_a_machine_without_devices_has_none(tmp_path, kind):
    (tmp_path / "dev").mkdir()
    assert count_devices(kind, {}, tmp_path / "dev", tmp_path / "drm") == 0
