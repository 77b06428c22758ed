"""Knows every call that needs an accelerator: copy streams, page registration, memory in use, random numbers.

The calls go through `torch.accelerator`, so that CUDA, ROCm and MetaX (all three are "cuda" to torch), Ascend ("npu")
and XPU run the same code. Page registration exists for "cuda" only; copies from other devices are correct, but slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

_PORTABLE = 1  # cudaHostRegisterPortable, hipHostRegisterPortable: for every context of this process
_ALREADY_REGISTERED = 712  # cudaErrorHostMemoryAlreadyRegistered: another registration serves as well


class HostCopy(NamedTuple):
    """One tensor to copy into host memory."""

    target: torch.Tensor  # on the CPU, same shape and dtype as the source
    source: torch.Tensor  # on any device, with any strides


class PendingCopies(Protocol):
    """Copies that devices make into host memory, and that may not have ended."""

    def order_before(self) -> None:
        """Make this thread's current stream of each device wait for the copies. The host does not wait."""

    def wait(self) -> None:
        """Block until the copies have ended. Later work on the training stream does not delay the return."""


class PageRegistrar(Protocol):
    """The part of a device driver that registers host memory for fast copies."""

    def register(self, address: int, size: int) -> str:
        """Register `size` bytes of host memory from `address` on. Return the reason if it fails, "" if it succeeds."""

    def unregister(self, address: int) -> None:
        """Unregister these bytes, before they are unmapped."""


class CopyStreams(Protocol):
    """Starts copies from devices into host memory, each ordered after the work that is already queued."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True if the tensor lies on a device, so that the host continues while it is copied."""

    def start(self, copies: Sequence[HostCopy]) -> PendingCopies:
        """Start the copies and return at once. A source must not be freed before they have ended."""

    def registrar(self, device: torch.device) -> PageRegistrar:
        """Return the registrar for host memory into which this device copies."""


@dataclass(frozen=True, slots=True)
class _StreamEvents:
    """One event per device, recorded after its last copy."""

    events: tuple[tuple[torch.device, torch.Event], ...] = ()

    def order_before(self) -> None:
        for device, event in self.events:
            torch.accelerator.current_stream(device).wait_event(event)

    def wait(self) -> None:
        for _, event in self.events:
            event.synchronize()


NO_COPIES: PendingCopies = _StreamEvents()  # nothing to wait for


class SideStreams:
    """Copies on one extra stream per device, so that neither training nor the host waits for a copy.

    The extra stream first waits for the calling thread's current stream: a copy sees every kernel that this thread
    queued before it. Work that another thread or another stream queued has to be ordered by whoever queued it, as for
    any kernel. Tensors on the CPU are copied before `start` returns.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.Stream] = {}

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True if the tensor is not on the CPU."""
        return not tensor.is_cpu

    def registrar(self, device: torch.device) -> PageRegistrar:
        """Return a CudaRegistrar for a device of type "cuda", else a NoRegistrar."""
        return CudaRegistrar(device) if device.type == "cuda" else NoRegistrar(device)

    def start(self, copies: Sequence[HostCopy]) -> PendingCopies:
        """Start the copies of each device on its side stream; make copies from the CPU now.

        If a copy cannot be started, wait for the started ones and raise its error.
        """
        by_device: dict[torch.device, list[HostCopy]] = {}
        for copy in copies:
            by_device.setdefault(copy.source.device, []).append(copy)
        events: list[tuple[torch.device, torch.Event]] = []
        try:
            for device, device_copies in by_device.items():
                if device.type == "cpu":
                    _copy_all(device_copies, non_blocking=False)
                else:
                    events.append((device, self._start_on(device, device_copies)))
        except BaseException:
            for stream in self._streams.values():
                stream.synchronize()
            raise
        return _StreamEvents(tuple(events)) if events else NO_COPIES

    def _start_on(self, device: torch.device, copies: Sequence[HostCopy]) -> torch.Event:
        """Queue copies from one device to host memory on the side stream of that device.

        The copies start when the work that is queued on the current stream has ended. Returns the event that marks the
        end of the copies.
        """
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.Stream(device)
        queued = torch.Event(device)
        queued.record(torch.accelerator.current_stream(device))
        stream.wait_event(queued)
        with _use_stream(stream):
            _copy_all(copies, non_blocking=True)
        ended = torch.Event(device, blocking=True)  # a thread that waits for it sleeps instead of spinning
        ended.record(stream)
        return ended


def _copy_all(copies: Sequence[HostCopy], *, non_blocking: bool) -> None:
    """Copy each source to its target on the current stream. non_blocking: return before the copies have ended."""
    for target, source in copies:
        target.copy_(source, non_blocking=non_blocking)


@contextmanager
def _use_stream(stream: torch.Stream) -> Iterator[None]:
    """Make this stream the current one of its device within a block. Restore the streams and the device at the end."""
    former_stream = torch.accelerator.current_stream(stream.device)
    stream_of_current_device = torch.accelerator.current_stream()
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(former_stream)
        if stream_of_current_device.device != former_stream.device:
            torch.accelerator.set_stream(stream_of_current_device)  # this also makes its device current again


class CudaRegistrar:
    """Registers host memory with CUDA, or with ROCm and MetaX under the same names.

    A call that fails leaves its error in the calling thread, and torch reports it at that thread's next kernel. So
    call both methods on a thread that starts no kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def register(self, address: int, size: int) -> str:
        """Register host memory with the driver, for fast copies from this registrar's device. Return the reason if it
        fails, else "".

        address, size: of the memory, in bytes. A new thread would otherwise use device 0 and create a context there.
        """
        try:
            with torch.cuda.device(self._device):
                runtime: Any = torch.cuda.cudart()
                code = int(runtime.cudaHostRegister(address, size, _PORTABLE))
        except (AssertionError, RuntimeError) as error:  # this torch lacks the library; saves do not fail for it
            return str(error)
        return "" if code in (0, _ALREADY_REGISTERED) else f"cudaHostRegister: error {code}"

    def unregister(self, address: int) -> None:
        """Unregister the bytes that begin at `address`. Ignore errors: nothing could repair them."""
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(address)


class NoRegistrar:
    """Stands for a driver whose page registration torch does not offer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def register(self, address: int, size: int) -> str:
        """Register nothing; return the reason."""
        return f"torch cannot register host memory for {self._device.type}"

    def unregister(self, address: int) -> None:
        """Do nothing: nothing was registered."""


def active_kind() -> str:
    """Return the type ("cuda", "npu", "xpu") of the accelerator that this process has initialized, or "". Initializes
    none.
    """
    return next((kind for kind in _kinds() if torch.get_device_module(kind).is_initialized()), "")


def usable_kind() -> str:
    """Return the type of the accelerator that this process uses or could use, or ""."""
    return active_kind() or next((kind for kind in _kinds() if torch.get_device_module(kind).is_available()), "")


def _kinds() -> tuple[str, ...]:
    """Return the type of accelerator that this torch was built for, at most one; () for none."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not hasattr(torch.get_device_module(accelerator.type), "is_initialized"):
        return ()
    return (accelerator.type,)


def generator_state(kind: str) -> torch.Tensor:
    """Return the state of the random number generator of the current device of a type. Shape (n,), uint8, on the CPU.

    kind: torch's name of the type, as `active_kind` returns it.
    """
    state: torch.Tensor = torch.get_device_module(kind).get_rng_state()
    return state.cpu()


def set_generator_state(kind: str, state: torch.Tensor) -> None:
    """Set the random number generator of the current device of this type to a state that `generator_state` returned.

    Raises RuntimeError for an invalid state.
    """
    torch.get_device_module(kind).set_rng_state(state)


def used_memory(device: torch.device) -> float | None:
    """Return the share of a device's memory that is in use, 0 to 1. None for a CPU or where torch cannot tell."""
    read_memory = None if device.type == "cpu" else getattr(torch.get_device_module(device), "mem_get_info", None)
    if read_memory is None:
        return None
    free_bytes, total_bytes = read_memory(device)
    return 1 - float(free_bytes) / float(total_bytes)


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype that matrix products are measured in: bfloat16 where the device has it, else float32."""
    has_bfloat16 = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return torch.bfloat16 if device.type != "cpu" and has_bfloat16 is not None and has_bfloat16() else torch.float32


def device_count() -> int:
    """Count the accelerators that this process can use. 0 on a machine without any."""
    return int(torch.accelerator.device_count())


def device_name(number: int) -> str:
    """Return torch's name of accelerator `number`, such as "cuda:0", or "cpu" where there is no accelerator."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else f"{accelerator.type}:{number}"


def has_peer_link(source: int, target: int) -> bool:
    """Return True if one CUDA device of this host can read the memory of another without going through the host.

    source: index of the device that reads. target: index of the device whose memory is read.
    """
    return bool(torch.cuda.can_device_access_peer(source, target))


def synchronize(device: torch.device) -> None:
    """Block until all work of a device has ended. Only measurements need this; a save waits for its own copies."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def collective_device(backend: str) -> torch.device:
    """Return the device on which a collective of this backend needs its tensors: the current accelerator, or the CPU.

    backend: torch.distributed's name; "gloo" sends from the CPU.
    """
    if backend == "gloo" or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_stream().device
