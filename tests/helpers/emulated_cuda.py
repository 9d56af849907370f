"""A CUDA device that is not there: its tensors say ``cuda:0``, and the CPU computes.

Within `emulated_cuda`, code takes its CUDA paths on a machine without a GPU. Operations on tensors of both devices are
refused, as CUDA refuses them.

torch's core sees the tensors on ``cpu``, so that autograd asks for no streams and autocast of the CPU serves.
"""

import contextlib
import threading
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
MEMORY = 141 << 30  # bytes of an H200

INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
BOTH_DEVICES = {aten.copy_.default, aten._to_copy.default, aten.set_.source_Storage, *INDEXING}


class CudaTensor(torch.Tensor):
    """A tensor that says it is on the device; `inner` holds its values on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            made = torch.Tensor._make_subclass(cls, inner.detach(), False)
        made.inner = inner
        return made

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return CUDA
        with EmulatedDevice.current:
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo):
        with torch.no_grad():
            copied = self.clone()
        copied.requires_grad_(self.requires_grad)
        copied._is_param = getattr(self, "_is_param", False)
        memo[id(self)] = copied
        return copied

    def get_device(self):
        return 0

    def to(self, *args, copy=False, **kwargs):
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        options = {"dtype": dtype} | ({} if layout is None else {"memory_format": layout})
        if device is not None and device.type != "cuda":
            return EmulatedDevice.current.move(self, CPU, options)
        unchanged = dtype in (None, self.dtype) and (layout is None or self.is_contiguous(memory_format=layout))
        return self if unchanged and not copy else aten._to_copy(self, **options)

    def cpu(self, *args, **kwargs):
        return self.to("cpu")

    def cuda(self, *args, **kwargs):
        return self

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy; copy it to host memory with cpu() first")

    __array__ = numpy

    def tolist(self):
        return self.cpu().tolist()


class EmulatedDevice(TorchDispatchMode):
    """Runs every operation of torch within it, on the CPU, for the device that it names."""

    current = None

    def __init__(self):
        super().__init__()
        self._outer = []

    def __enter__(self):
        self._outer.append(EmulatedDevice.current)
        EmulatedDevice.current = self
        return super().__enter__()

    def __exit__(self, *raised):
        handled = super().__exit__(*raised)
        EmulatedDevice.current = self._outer.pop() or EmulatedDevice.current
        return handled

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return args[0].device
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        on_device = [tensor for tensor in tensors if isinstance(tensor, CudaTensor)]
        named = any(isinstance(leaf, torch.device) and leaf.type in ("cuda", "meta") for leaf in leaves)
        if not on_device and not named:
            return self._on_host(func, args, kwargs)
        if func is not aten._to_copy.default and _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        _check_generator(func, kwargs.get("generator"))
        if on_device and func not in BOTH_DEVICES:
            _check_one_device(func, tensors)
        if func is aten._to_copy.default:
            options = {name: kwargs[name] for name in ("dtype", "memory_format") if name in kwargs}
            return self.move(args[0], CUDA if on_device else kwargs.get("device") or args[0].device, options)
        if func is aten.copy_.default:
            return self._copy(*args, **kwargs)
        return self._compute(func, args, kwargs)

    def move(self, tensor, device, options):
        """Copy to a device, or within one."""
        copied = aten._to_copy.default(_inner(tensor), **options)
        return CudaTensor(copied) if device.type in ("cuda", "meta") else copied

    def _on_host(self, func, args, kwargs):
        if func in (aten.pin_memory.default, aten._pin_memory.default):
            return args[0].clone()
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)

    def _compute(self, func, args, kwargs):
        if func in INDEXING and func is not aten.index.Tensor and not isinstance(args[2], CudaTensor) and args[2].dim():
            raise RuntimeError("index_put_: expected values on cuda:0, got values on cpu")
        kwargs.pop("pin_memory", None)
        inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
        result = func(*inner_args, **inner_kwargs)
        wrapped = tree_map(lambda leaf: CudaTensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)
        return _written_arguments(func, args, kwargs, wrapped)

    def _copy(self, target, source, non_blocking=False):
        aten.copy_.default(_inner(target), _inner(source))
        return target


def _inner(leaf):
    """What the CPU computes with."""
    if isinstance(leaf, CudaTensor):
        return leaf.inner
    return CPU if isinstance(leaf, torch.device) and leaf.type in ("cuda", "meta") else leaf


def _is_composite(func):
    """Whether torch makes it of other operations, on every device."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _check_generator(func, generator):
    if generator is not None and generator.device.type != "cuda":
        raise RuntimeError(f"{func}: expected a generator of cuda, got one of {generator.device.type}")


def _check_one_device(func, tensors):
    if any(tensor.dim() and not isinstance(tensor, CudaTensor) for tensor in tensors):
        raise RuntimeError(f"expected all tensors to be on one device, but found cuda:0 and cpu ({func})")


def _written_arguments(func, args, kwargs, results):
    """Results, where those that an operation wrote into are its arguments themselves."""
    schema = func._schema
    if not schema.is_mutable:
        return results
    written = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            by_name = argument.kwarg_only or position >= len(args)
            value = kwargs.get(argument.name) if by_name else args[position]
            written[tuple(argument.alias_info.before_set)] = value
    many = isinstance(results, tuple | list)
    returned = list(results) if many else [results]
    for position, result in enumerate(schema.returns[: len(returned)]):
        if result.alias_info is not None and tuple(result.alias_info.before_set) in written:
            returned[position] = written[tuple(result.alias_info.before_set)]
    return type(results)(returned) if many else returned[0]


class Stream:
    """Stands for streams, of which there is one."""

    def __init__(self, *args, **kwargs):
        pass

    def synchronize(self, *args):
        pass

    wait_stream = wait_event = record_event = synchronize


@contextlib.contextmanager
def emulated_cuda():
    """Let torch believe that there is one GPU; yields the `EmulatedDevice`."""
    device = EmulatedDevice()
    stand_ins = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "manual_seed_all": lambda seed: None,
        "mem_get_info": lambda *args: (MEMORY, MEMORY),
        "memory_allocated": lambda *args: 0,
        "memory_reserved": lambda *args: 0,
        "empty_cache": lambda: None,
        "synchronize": lambda *args: None,
        "Stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda *args: Stream(),
        "device": lambda device: contextlib.nullcontext(),
    }
    torch._C._ensureCUDADeviceGuardSet()
    with contextlib.ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(patch.object(torch.cuda, name, stand_in))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda tensor, *args: tensor.clone()))
        stack.enter_context(patch.object(threading.Thread, "run", _on_the_device(device, threading.Thread.run)))
        stack.enter_context(patch.object(torch, "autocast", _autocast_of_cpu(torch.autocast)))
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(device)
        yield device


def _on_the_device(device, run):
    """The body of a thread, which sees the device as the thread that began it: torch keeps modes by thread."""

    def entered(thread):
        with device:
            run(thread)

    return entered


def _autocast_of_cpu(autocast):
    def entered(device_type, *args, **kwargs):
        return autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return entered
