"""A device that is not the CPU, for tests on machines without a GPU.

Kernels run on the CPU, but a tensor on the device `simulated:1` or `simulated:2` has no memory that
the CPU can read, and an operation whose tensors are on different devices fails, as under CUDA. Code
that passes here puts no tensor on the wrong device. The devices have memory that can be limited,
and then run out with CUDA's error; and they can be without float64, like Apple's GPUs. They show
nothing about speed, about kernels that exist only for CUDA, or about their rounding.

`install()` changes torch for the whole process and can't be undone: call it in a process of its
own, before a model is loaded. It uses PyTorch's interface for backends in Python, which is
experimental; written for 2.13.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _device as default_device
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import masking_utils

NAME = "simulated"
CPU = torch.device("cpu")
FIRST, SECOND = torch.device("privateuseone", 1), torch.device("privateuseone", 2)
ANYWHERE = torch.device("privateuseone", 0)
"""To torch itself all tensors are here, because its autograd engine knows a single device of a
backend in Python. What torch creates in C++ like another tensor is therefore here until an
operation combines it with a tensor on a device."""

COPIES = frozenset({"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"})
"""Operations that move numbers between devices."""
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operations that accept indices on the CPU for a tensor on a device."""


class Memory:
    """Bytes of the tensors on both devices: views share theirs, as they share a storage."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self.limit: int | None = None
        self._owners: Counter[int] = Counter()

    def take(self, owner: OnDevice, raw: torch.Tensor) -> None:
        """Count the storage of `raw` until the last tensor that uses it is gone.

        Raises:
            torch.OutOfMemoryError: more than `limit` bytes would be in use.
        """
        storage = raw.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not self._owners[address]:
            if self.limit is not None and self.used + size > self.limit:
                raise torch.OutOfMemoryError(f"{NAME} out of memory: tried to allocate {size}.")
            self.used += size
            self.peak = max(self.peak, self.used)
        self._owners[address] += 1
        weakref.finalize(owner, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._owners[address] -= 1
        if not self._owners[address]:
            del self._owners[address]
            self.used -= size

    @contextmanager
    def limited(self, n_bytes: int) -> Iterator[None]:
        """No more than `n_bytes` can be used while this is open."""
        gc.collect()
        self.limit = n_bytes
        try:
            yield
        finally:
            self.limit = None

    def of(self, run: Callable[[], object]) -> tuple[int, int]:
        """Bytes in use before `run` and at its peak."""
        gc.collect()  # reference cycles of earlier runs would count until Python finds them
        before = self.peak = self.used
        run()
        return before, self.peak

    def falls_to(self, n_bytes: float, seconds: float = 10) -> bool:
        """Whether at most `n_bytes` are in use, now or soon: torch's thread for the backward passes
        of a device holds tensors of a pass until shortly after its end."""
        end = time.monotonic() + seconds
        while True:
            gc.collect()  # a traceback and its frames may refer to each other
            if self.used <= n_bytes or time.monotonic() > end:
                return self.used <= n_bytes
            time.sleep(0.01)


memory = Memory()


class OnDevice(torch.Tensor):
    """A tensor on one of the devices; `raw` holds its numbers, on the CPU, and `place` is the
    device that this module and Python code see."""

    raw: torch.Tensor
    place: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor, place: torch.device = ANYWHERE) -> OnDevice:
        if raw.dtype in _missing:
            raise TypeError(f"{NAME} devices have no {raw.dtype}.")
        tensor: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=ANYWHERE,
            requires_grad=raw.requires_grad,
        )
        tensor.raw, tensor.place = raw, place
        memory.take(tensor, raw)
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operation, *args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.raw}, {self.place})"

    @property
    def device(self) -> torch.device:
        return self.place

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        target, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if target is not None and target.type != NAME:
            return super().to(*args, copy=copy, **kwargs)
        place = self.place if target is None else _specific(target)
        tensor = _Move.apply(self, place) if copy or place != self.place else self
        return tensor if dtype is None else torch.Tensor.to(tensor, dtype)

    # By their addresses, libraries recognize weights that are shared.
    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def storage(self) -> Any:
        return self.raw.storage()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    # What these three write in C++ needs memory that the CPU can read.
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_indices(index), value)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype).to(device or self.device)


class _Move(torch.autograd.Function):
    """A copy on another device, whose gradient returns to the first."""

    @staticmethod
    def forward(context: Any, tensor: OnDevice, target: torch.device) -> Any:
        context.place = tensor.place
        return OnDevice(tensor.raw.clone(), target)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _Move.apply(gradients[0], context.place), None


def _specific(device: torch.device) -> torch.device:
    """The device itself, or the first one if it has no number."""
    return FIRST if device.index is None else device


def _indices(index: Any) -> Any:
    """Lists and arrays in an index as tensors."""
    if isinstance(index, tuple):
        return tuple(map(_indices, index))
    return torch.as_tensor(index) if isinstance(index, list) or _is_array(index) else index


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0


def _leaves(value: Any) -> Iterator[Any]:
    """The values inside lists, tuples and dictionaries; `tree_leaves` of torch takes twice the time
    of a small operation."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


_PLAIN = frozenset({bool, float, int, str, torch.dtype, torch.layout, type(None)})


def _unwrapped(value: Any, tensors: list[Any]) -> Any:
    """`value` with tensors and devices replaced by the CPU's; the tensors in it are appended to
    `tensors`."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return kind([_unwrapped(part, tensors) for part in value])
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.raw if isinstance(value, OnDevice) else value
    return CPU if kind is torch.device and value.type == NAME else value


def _wrapped(value: Any, place: torch.device) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_wrapped(part, place) for part in value)
    return OnDevice(value, place) if isinstance(value, torch.Tensor) else value


def _place(tensors: Iterable[Any], operation: Any) -> torch.device:
    """The device on which an operation over `tensors` runs.

    Raises:
        RuntimeError: they are on different devices.
    """
    # A number alone may be on the CPU.
    places = {tensor.device for tensor in tensors if isinstance(tensor, OnDevice) or tensor.dim()}
    if {FIRST, SECOND} & places:
        places.discard(ANYWHERE)
    if len(places) > 1:
        first, second, *_ = sorted(map(str, places))
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{first} and {second}! ({operation})"
        )
    return places.pop() if places else CPU


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU and put its result on the device of its tensors.

    Raises:
        RuntimeError: its tensors are on different devices.
    """
    name, writes, n_results = _signature(operation)
    tensors: list[Any] = []
    raw_args = [_unwrapped(value, tensors) for value in args]
    raw_kwargs = {key: _unwrapped(value, tensors) for key, value in kwargs.items()}
    if name in INDEXING:
        indices = list(_leaves(args[1]))
        tensors = [
            t for t in tensors if isinstance(t, OnDevice) or not any(t is i for i in indices)
        ]
    if name in COPIES:
        place = next((t.device for t in tensors if isinstance(t, OnDevice)), CPU)
    else:
        place = _place(tensors, operation)
    if (target := kwargs.get("device")) is not None:
        place = _specific(target) if target.type == NAME else CPU
    result = operation(*raw_args, **raw_kwargs)
    if name == "_to_copy" and result.data_ptr() == raw_args[0].data_ptr():
        result = result.clone()
    if place == CPU:
        return result
    if not writes:
        return _wrapped(result, place)
    written = [
        kwargs.get(key, args[number] if number < len(args) else None) for number, key in writes
    ]
    for tensor in _leaves(written):
        if isinstance(tensor, OnDevice) and tensor.place == ANYWHERE:
            tensor.place = place
    if n_results != len(written):
        return _wrapped(result, place) if n_results else None
    return written[0] if len(written) == 1 else tuple(written)


@cache
def _signature(operation: Any) -> tuple[str, list[tuple[int, str]], int]:
    """The name of an operation, the arguments that it writes, and its number of results."""
    schema = operation._schema
    writes = [
        (number, argument.name)
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return schema.name.split("::")[1], writes, len(schema.returns)


class _Backend:
    """What torch and libraries ask of a backend's module."""

    class device:
        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: Any) -> None: ...

    def device_count(self) -> int:
        return 3

    def current_device(self) -> int:
        return FIRST.index

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    # Random numbers are those of the CPU.
    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: Any) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, _: int) -> None: ...
    def manual_seed_all(self, _: int) -> None: ...
    def synchronize(self, *_: Any) -> None: ...
    def empty_cache(self) -> None: ...


def _placed(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.tensor` and `torch.as_tensor` write numbers in C++, which no device in Python sees:
    create them on the CPU and move them."""

    def create_and_move(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        place = torch.empty(0).device if device is None else torch.device(device)
        if place.type != NAME:
            return create(*args, device=device, **kwargs)
        return create(*args, device="cpu", **kwargs).to(place)

    return create_and_move


_apply = torch.nn.Module._apply


def _apply_with_attributes(module: torch.nn.Module, change: Any, recurse: bool = True) -> Any:
    """`Module.to` creates new parameters here; keep the attributes that libraries set on them."""
    attributes = {n: dict(p.__dict__) for n, p in module._parameters.items() if p is not None}
    result = _apply(module, change, recurse)
    for name, values in attributes.items():
        parameter = module._parameters[name]
        for key, value in values.items():
            if key not in ("grad", "raw", "place"):
                setattr(parameter, key, value)
    return result


def _enter(mode: torch.inference_mode) -> None:
    mode._without_gradients = torch.set_grad_enabled(not mode.mode)  # type: ignore[attr-defined]
    mode._without_gradients.__enter__()


def _exit(mode: torch.inference_mode, *error: Any) -> None:
    mode._without_gradients.__exit__(*error)  # type: ignore[attr-defined]


def _one_by_one(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """`torch.func.vmap` as a loop."""

    def call(many: torch.Tensor) -> Any:
        # Every backward pass but vmap's single one needs the graph again.
        again = partial(torch.autograd.grad)

        def grad(*args: Any, **kwargs: Any) -> Any:
            return again(*args, **{**kwargs, "retain_graph": True})

        with patch("torch.autograd.grad", grad):
            results = [function(one) for one in many]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return torch.stack(results)

    return call


def _broadcast(function: Callable[..., Any]) -> Callable[..., Any]:
    """A mask's function of indices over all four dimensions at once; transformers uses vmap."""
    return lambda *indices: function(*masking_utils._non_vmap_expansion_sdpa(*indices))


_library: Any = None
_missing: frozenset[torch.dtype] = frozenset()


def install(*, float64: bool = True) -> None:
    """Register the devices, with or without `float64`, and replace what torch can't do with a
    device in Python: inference tensors, and several gradients in one pass."""
    global _library, _missing
    _missing = frozenset() if float64 else frozenset({torch.float64, torch.complex128})
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    _library = torch.library.Library("_", "IMPL")
    _library.fallback(
        lambda operation, *args, **kwargs: _run(operation, *args, **kwargs),
        dispatch_key="PrivateUse1",
    )
    torch.nn.Module._apply = _apply_with_attributes
    default_device._device_constructors()  # remembers the original constructors
    torch.tensor, torch.as_tensor = _placed(torch.tensor), _placed(torch.as_tensor)
    # Libraries have decorated their functions with this class when they were imported.
    torch.inference_mode.__enter__, torch.inference_mode.__exit__ = _enter, _exit
    torch.func.vmap = _one_by_one
    masking_utils._vmap_expansion_sdpa = _broadcast
