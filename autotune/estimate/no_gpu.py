"""Has a program that asks for a GPU run on the CPU, where there is none: devices, autocast, streams, events.

Values and speed of a GPU, its graphs and its libraries are not there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Devices of torch's functions, in one thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        args = tuple(_on_cpu(value, func is torch.Tensor.to) for value in args)
        return func(
            *args, **{name: _on_cpu(value, name == "device") for name, value in (kwargs or {}).items()}
        )


def _on_cpu(value: Any, is_device: bool = False) -> Any:
    """A device of CUDA as the CPU, anything else as it is. `is_device`: a number is the device's."""
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    is_named = isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value)
    return _CPU if is_cuda or is_named or (is_device and type(value) is int) else value


class _HostEvent:
    """Of a stream whose work is done at once."""

    def __init__(self, *_: object, **__: object) -> None:
        self._at_s = 0.0

    def record(self, stream: object = None) -> None:
        self._at_s = time.perf_counter()

    def elapsed_time(self, other: _HostEvent) -> float:
        return 1e3 * (other._at_s - self._at_s)

    def query(self) -> bool:
        return True

    def wait(self, *_: object) -> None: ...

    synchronize = wait


class _HostStream:
    def __init__(self, *_: object, **__: object) -> None: ...

    def record_event(self, event: _HostEvent | None = None) -> _HostEvent:
        found = event or _HostEvent()
        found.record()
        return found

    def query(self) -> bool:
        return True

    def synchronize(self, *_: object) -> None: ...

    wait_stream = wait_event = synchronize


class _HostGenerator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, _on_cpu(device, is_device=True))


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Torch's functions of CUDA for all threads; autocast of CUDA, which would only warn, acts on the CPU."""
    autocast, load = torch.autocast.__init__, torch.load

    def made(self: Any, device_type: str, dtype: Any = None, *more: Any, **options: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        autocast(self, device_type, dtype, *more, **options)

    def loaded(file: Any, map_location: Any = None, *more: Any, **options: Any) -> Any:
        return load(file, _CPU if map_location is None else _on_cpu(map_location), *more, **options)

    with ExitStack() as replaced:
        for owner, name, replacement in (
            (torch.autocast, "__init__", made), (torch, "load", loaded), (torch, "Generator", _HostGenerator),
            (torch.cuda, "synchronize", lambda *_: None), (torch.cuda, "set_device", lambda *_: None),
            (torch.cuda, "Event", _HostEvent), (torch.cuda, "Stream", _HostStream),
            (torch.cuda, "stream", lambda *_: nullcontext()),
            *((torch.cuda, name, _HostStream) for name in ("current_stream", "default_stream")),
        ):  # fmt: skip
            replace(owner, name, replacement, replaced)
        yield


def replace(owner: Any, name: str, replacement: Any, replaced: ExitStack) -> None:
    """Set an attribute for as long as a context is entered."""
    replaced.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, replacement)
