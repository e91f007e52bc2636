"""A pretend GPU: tensors that say they are on `cuda` and are held to its rules, while a CPU computes them.

While a `PretendGpu` is entered, code runs the way it takes on a GPU, and what a GPU would refuse is an error here:

- tensors of both devices in one operation (numbers and indices of a GPU's tensor excepted, as there);
- `numpy()` of a tensor on the GPU;
- in the capture of a CUDA graph: waiting for the device, or a copy from memory that is not pinned.

A captured graph computes nothing until it is replayed, and a replay reads and writes the very tensors of the capture, with the
host's values of that time. `waits` has what the host waited for, `peak` the most bytes that tensors had at once. Nothing is said
of speed, of kernels that a GPU has for itself, or of streams: all is done in the order of the calls.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.pretend_graphs import Graph, capture, storage_of, tensors_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
PACKAGE = "/src/recollect/"
_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.repeat_interleave.Tensor,
    _aten.equal.default,
}  # of these the host must know the result
_BETWEEN = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten.set_.source_Tensor,
}  # these may have tensors of two devices
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
}


def is_on_gpu(tensor: Tensor) -> bool:
    return hasattr(storage_of(tensor), "on_pretend_gpu")


def _mark(gpu: PretendGpu, tensor: Tensor, on_gpu: bool) -> Tensor:
    storage = storage_of(tensor)
    if storage is None or hasattr(storage, "on_pretend_gpu") == on_gpu:
        return tensor
    if on_gpu:
        gpu.take(storage.nbytes())
        storage.on_pretend_gpu = weakref.finalize(storage, gpu.freed, storage.nbytes())
    else:
        storage.on_pretend_gpu()  # gives its bytes back
        del storage.on_pretend_gpu
    return tensor


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


class PretendGpu:
    """Enter it, and `cuda` is there.

    Args:
        memory: bytes of the device; more is an error as on a GPU. None: as much as there is here.

    Attributes:
        waits: for each time that the host waited for the device, which operation it was, and the function of the package.
        allocated: bytes of all tensors on the device.
        peak: the most of them so far. Workspaces of libraries, and what an allocator keeps or breaks up, are not counted.
    """

    def __init__(self, memory: int | None = None) -> None:
        self.memory = memory
        self.waits: list[tuple[str, str]] = []
        self.allocated = self.peak = 0
        self.here = threading.local()  # capturing: the graph that this thread captures
        self._entered = ExitStack()

    def forget_peak(self, *unused: Any) -> None:
        self.peak = self.allocated

    def take(self, size: int) -> None:
        """Raises torch.OutOfMemoryError."""
        if self.memory is not None and self.allocated + size > self.memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 1e9:.2f} GB")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def freed(self, size: int) -> None:
        self.allocated -= size

    @property
    def capturing(self) -> Graph | None:
        return getattr(self.here, "capturing", None)

    def waited(self, what: str) -> None:
        """The host waits; raises RuntimeError in a capture."""
        if self.capturing is not None:
            self.capturing.broken = True
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        frame = sys._getframe(1)
        while frame is not None and PACKAGE not in frame.f_code.co_filename:
            frame = frame.f_back
        where = "" if frame is None else f"{frame.f_code.co_filename.split(PACKAGE)[-1]}:{frame.f_code.co_name}"
        self.waits.append((what, where))

    def copies(self, on_host: Tensor, to_gpu: bool, non_blocking: bool, how: str) -> None:
        """A copy from or to a tensor of the host. From memory that is not pinned the driver takes it into its own at once."""
        pinned = hasattr(storage_of(on_host), "pinned")
        if not non_blocking or (not pinned and (not to_gpu or self.capturing is not None)):
            self.waited(how)

    @contextmanager
    def home(self, on_gpu: bool) -> Iterator[None]:
        """Where an operation makes tensors that it is given no device for: it takes its own tensors' device."""
        before = getattr(self.here, "home", False)
        self.here.home = on_gpu
        try:
            yield
        finally:
            self.here.home = before

    def modes(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(_Operations(self))
        stack.enter_context(_Calls(self))
        return stack

    def __enter__(self) -> PretendGpu:
        # As this loads it notes the functions of torch.cuda, which must be the real ones.
        importlib.import_module("torch._dynamo")

        with ExitStack() as stack:
            for patch in _patches(self):
                stack.enter_context(patch)
            stack.enter_context(self.modes())
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)


class _Calls(TorchFunctionMode):
    """What is asked of a tensor in Python: where it is, and to be moved or made on a device."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NO_TENSOR:
            return func(*args)
        kwargs = dict(kwargs or {})
        own = _OWN.get(func)
        if own is not None:
            return own(self.gpu, func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name == "_parse_to" or kwargs.get("device") is None or torch.device(kwargs["device"]).type == "meta":
            with self.gpu.home(any(map(is_on_gpu, tensors_of((args, kwargs))))):
                return func(*args, **kwargs)
        to_gpu = _is_gpu(kwargs.pop("device"))
        given = func(*args, device=CPU, **kwargs)
        if name in ("tensor", "as_tensor", "asarray"):
            if args and isinstance(args[0], Tensor):
                return moved(self.gpu, given, to_gpu)
            if to_gpu:
                self.gpu.waited(name)
                return _mark(self.gpu, given.clone() if name != "tensor" else given, True)
            return given
        return _mark(self.gpu, given, to_gpu)


def moved(gpu: PretendGpu, tensor: Tensor, to_gpu: bool, non_blocking: bool = False, how: str = "to") -> Tensor:
    """A tensor on a device; a copy where that is the other one."""
    if is_on_gpu(tensor) == to_gpu or tensor.device.type == "meta":
        return tensor
    gpu.copies(tensor, to_gpu, non_blocking, how)
    with torch.utils._python_dispatch._disable_current_modes():
        copy = tensor.clone()
    return _mark(gpu, copy, to_gpu)


def _device_of(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> torch.device:
    given: torch.device = func(*args)
    return GPU if given.type == "cpu" and is_on_gpu(args[0]) else given


def _to(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Tensor:
    tensor, *rest = args
    if rest and isinstance(rest[0], Tensor):  # to(other)
        to_gpu, dtype = is_on_gpu(rest[0]), rest[0].dtype
        return moved(gpu, tensor.to(dtype), to_gpu)
    device, dtype, non_blocking, form = torch._C._nn._parse_to(
        *rest, **{k: v for k, v in kwargs.items() if k != "copy"}
    )
    given = tensor
    if dtype is not None or form is not None or kwargs.get("copy"):
        more = {} if form is None else {"memory_format": form}
        given = func(tensor, dtype or tensor.dtype, copy=bool(kwargs.get("copy")), **more)
    return given if device is None else moved(gpu, given, _is_gpu(device), non_blocking)


def _numpy(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Any:
    if is_on_gpu(args[0]):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")
    return func(*args, **kwargs)


def _pinned(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Tensor:
    if is_on_gpu(args[0]):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor': only dense CPU tensors can be pinned")
    given = args[0].clone()
    given.untyped_storage().pinned = True
    return given


def _copied(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Tensor:
    to, tensor = args[0], args[1]
    non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
    if is_on_gpu(to) != is_on_gpu(tensor):
        gpu.copies(tensor if is_on_gpu(to) else to, is_on_gpu(to), non_blocking, "copy_")
    return func(to, tensor)


def _new_tensor(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Tensor:
    to_gpu = _is_gpu(kwargs.pop("device", GPU if is_on_gpu(args[0]) else CPU))
    if to_gpu:
        gpu.waited("new_tensor")
    return _mark(gpu, func(*args, **kwargs), to_gpu)


def _one_hot(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A CPU asks for the least and the largest number first; on a GPU the scatter finds what is out of range."""
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if not is_on_gpu(args[0]) or classes < 0:
        return func(*args, **kwargs)
    return args[0].new_zeros((*args[0].shape, classes)).scatter(-1, args[0][..., None], 1)


def _stored(gpu: PretendGpu, func: Any, args: Any, kwargs: Any) -> Any:
    """`deepcopy`, which copies a storage by itself."""
    given = func(*args, **kwargs)
    return _mark(gpu, given, is_on_gpu(args[0])) if isinstance(given, Tensor) else given


_OWN: dict[Any, Callable[..., Any]] = {
    Tensor.device.__get__: _device_of,
    Tensor.is_cuda.__get__: lambda gpu, func, args, kwargs: is_on_gpu(args[0]),
    Tensor.is_cpu.__get__: lambda gpu, func, args, kwargs: func(*args) and not is_on_gpu(args[0]),
    Tensor.get_device: lambda gpu, func, args, kwargs: 0 if is_on_gpu(args[0]) else -1,
    Tensor.to: _to,
    Tensor.cpu: lambda gpu, func, args, kwargs: moved(gpu, args[0], False, how="cpu"),
    Tensor.cuda: lambda gpu, func, args, kwargs: moved(gpu, args[0], True, how="cuda"),
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.pin_memory: _pinned,
    Tensor.is_pinned: lambda gpu, func, args, kwargs: hasattr(storage_of(args[0]), "pinned"),
    Tensor.copy_: _copied,
    Tensor.new_tensor: _new_tensor,
    torch.nn.functional.one_hot: _one_hot,
    Tensor.__deepcopy__: _stored,
}


_NO_TENSOR = {Tensor.untyped_storage, Tensor.dim, Tensor.size}
_NO_TENSOR |= {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "layout")
}
"""What is asked of a tensor often, and makes none."""


class _Operations(TorchDispatchMode):
    """What is computed, in both directions: where results lie, and what may not be computed together."""

    def __init__(self, gpu: PretendGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        on_gpu = any(map(is_on_gpu, given)) if given else getattr(self.gpu.here, "home", False)
        if given and on_gpu:
            self._check(func, args, given)
        graph = self.gpu.capturing
        if graph is not None:
            graph.before(func, args, kwargs)
        found = func(*args, **kwargs)
        known = {id(storage_of(tensor)) for tensor in given}
        for tensor in tensors_of(found):
            if id(storage_of(tensor)) not in known:
                _mark(self.gpu, tensor, on_gpu and tensor.device.type == "cpu")
        if graph is not None:
            graph.after(func, args, kwargs, found, known)
        return found

    def _check(self, func: Any, args: Any, given: list[Tensor]) -> None:
        if func in _WAITING:
            self.gpu.waited(str(func))
        if func in _BETWEEN:
            return
        apart = [tensor for tensor in given if not is_on_gpu(tensor) and tensor.dim() and tensor.device.type == "cpu"]
        if func in _INDEXING:
            if not is_on_gpu(args[0]):
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            indices = [one for one in args[1] if one is not None]
            if any(one.dtype in (torch.bool, torch.uint8) for one in indices):
                self.gpu.waited("an index that is a mask")
            elif any(not is_on_gpu(one) for one in indices):
                self.gpu.waited("an index from the host")
            apart = [tensor for tensor in apart if all(tensor is not one for one in indices)]
        if apart:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
            )


class Stream:
    def __init__(self, *unused: Any, **also: Any) -> None:
        self.device = GPU

    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


def _patches(gpu: PretendGpu) -> Iterator[Any]:
    @contextmanager
    def inside(stream: Any) -> Iterator[None]:
        yield

    run, autocast, backward = threading.Thread.run, torch.autocast, torch.autograd.graph._engine_run_backward
    group = torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype  # which reads devices behind Python

    def run_with(thread: threading.Thread) -> None:
        with gpu.modes():
            run(thread)

    def cast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        """The functions of a backward pass that are written in Python ask where tensors are, too."""
        with gpu.home(any(map(is_on_gpu, tensors_of(args[0])))), _Calls(gpu):
            return backward(*args, **kwargs)

    def grouped(lists: list[list[Tensor]], *args: Any) -> dict[tuple[torch.device, torch.dtype], Any]:
        found = group(lists, *args)
        return {(GPU if any(map(is_on_gpu, tensors_of(lists))) else at[0], at[1]): value for at, value in found.items()}

    def nothing(*unused: Any, **also: Any) -> None: ...

    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *unused: "pretend GPU",
        "is_current_stream_capturing": lambda: gpu.capturing is not None,
        "is_bf16_supported": lambda *unused: True,
        "max_memory_allocated": lambda *unused: gpu.peak,
        "memory_allocated": lambda *unused: gpu.allocated,
        "reset_peak_memory_stats": gpu.forget_peak,
        "synchronize": lambda *unused: gpu.waited("synchronize"),
        "CUDAGraph": Graph,
        "graph": partial(capture, gpu),
        "Stream": Stream,
        "Event": Stream,
        "current_stream": Stream,
        "stream": inside,
        "graph_pool_handle": lambda: (0, 0),
    }
    for name in (
        "empty_cache",
        "set_device",
        "set_stream",
        "manual_seed_all",
        "manual_seed",
        "get_rng_state",
        "set_rng_state",
    ):  # its dropout draws from the CPU's own generator
        cuda[name] = nothing
    for name, value in cuda.items():
        yield mock.patch.object(torch.cuda, name, value)
    # oneDNN's LSTM keeps what a replay would have to make anew.
    yield torch.backends.mkldnn.flags(enabled=False, allow_tf32=False)
    # A CPU computes LSTMs, and a build of PyTorch that has cuDNN would lay their weights out for it.
    yield mock.patch.object(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    yield mock.patch.object(torch.nn.utils.clip_grad, "_group_tensors_by_device_and_dtype", grouped)
    yield mock.patch.object(threading.Thread, "run", run_with)
    yield mock.patch.object(torch, "autocast", cast)
    yield mock.patch.object(torch.autograd.graph, "_engine_run_backward", run_backward)
    yield mock.patch.object(Tensor, "record_stream", nothing)
    yield mock.patch.object(torch.autograd, "_engine_run_backward", run_backward)
