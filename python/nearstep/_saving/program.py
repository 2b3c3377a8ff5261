"""What is durable with a step beside the optimizer state: the module's persistent buffers and, on request, the random
generators. See docs/formats/state-file.md."""

from __future__ import annotations

import io
import json
import pickle
import random
import warnings

import torch

from .._model.groups import plain_name

_LENGTH_BYTES = 8
_MOST_ABOUT = 1 << 26
_SMALL_BYTES = 1 << 20  # a buffer of at most this size is looked at in every step, a larger one when PyTorch counts a change


def _buffers(module):
    """Names and tensors of a module's persistent buffers."""
    seen = set()
    for path, owner in module.named_modules():
        for name, buffer in owner.named_buffers(recurse=False):
            if name not in owner._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield plain_name(f"{path}.{name}" if path else name), buffer


def _is_dense(buffer) -> bool:
    """Whether its bytes and shape say what it holds."""
    return type(buffer) is torch.Tensor and buffer.layout is torch.strided and not buffer.is_quantized


def _on_host(buffer):
    """A copy, which is complete when the current stream has come here."""
    if buffer.device.type == "cpu":
        return buffer.contiguous().clone()
    return torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True).copy_(buffer, non_blocking=True)


def _saved(buffer):
    """The bytes that torch.save() writes."""
    file = io.BytesIO()
    torch.save(buffer, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _random_states(device) -> dict:
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


class Program:
    """Collects and restores it for one rank."""

    def __init__(self, module, keeps_random: bool):
        self._module = module
        self._keeps_random = keeps_random
        self._versions: dict = {}  # of large buffers that have not changed since the start
        self._changed: set = set()  # names of the others
        if module is not None:
            self._versions = {name: self._version(b) for name, b in _buffers(module) if self._is_large(b)}

    @staticmethod
    def _is_large(buffer) -> bool:
        return buffer.numel() * buffer.element_size() > _SMALL_BYTES

    @staticmethod
    def _version(buffer) -> tuple:
        return (id(buffer), None if buffer.is_inference() else buffer._version)

    def _kept(self):
        """Buffers to keep: large ones only once they have changed."""
        for name, buffer in _buffers(self._module) if self._module is not None else ():
            if buffer.is_meta or (name in self._versions and self._versions[name] == self._version(buffer)):
                continue
            if self._is_large(buffer):
                self._versions.pop(name, None)
            yield name, buffer

    def collect(self, device) -> tuple | None:
        """A header, addresses and bytes of memory, and the tensors that own it; None if there is nothing to keep. What lies
        on a GPU is copied in the current stream."""
        tensors = [(name, b.detach()) for name, b in self._kept()]
        about: dict = {"buffers": [], "random": None}
        if self._keeps_random:
            tensors += [(name, state) for name, state in _random_states(device).items()]
            about["random"] = {"names": [name for name, _ in tensors[len(tensors) - len(_random_states(device)) :]], "python": random.getstate()}
            about["random"]["numpy"] = _numpy_state()
        if not tensors:
            return None
        kept = []
        for name, tensor in tensors:
            host = _on_host(tensor) if _is_dense(tensor) else _saved(tensor)
            kept.append(host)
            about["buffers"].append({"name": name, "dtype": str(host.dtype).removeprefix("torch."), "shape": list(host.shape)})
            if not _is_dense(tensor):
                about["buffers"][-1]["is_saved"] = True
        text = json.dumps(about).encode()
        return len(text).to_bytes(_LENGTH_BYTES, "little") + text, [(t.data_ptr(), t.numel() * t.element_size()) for t in kept], kept

    def content(self, device) -> bytes:
        """Returns what collect() finds as one piece of memory."""
        found = self.collect(device)
        if found is None:
            return b""
        header, _, tensors = found
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return header + b"".join(t.view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)

    @torch.no_grad()
    def restore(self, content: bytes, device) -> None:
        """Raises ValueError for what is not whole, and warns of buffers that the module has in another shape."""
        about, tensors = _parse(content)
        random_names = set(about["random"]["names"]) if about["random"] else set()
        modules = {plain_name(path): owner for path, owner in self._module.named_modules()} if self._module is not None else {}
        odd = []
        for name, tensor in tensors.items():
            if name in random_names:
                continue
            path, _, key = name.rpartition(".")
            if path not in modules or not _set(modules[path], key, tensor, device):
                odd.append(name)
            self._versions.pop(name, None)
        if odd:
            warnings.warn(f"The state holds buffers that this module does not have in the same shape ({', '.join(odd[:3])}): they keep their values.")
        if self._keeps_random and about["random"]:
            torch.set_rng_state(tensors["torch"])
            if "cuda" in tensors and torch.cuda.is_available():
                torch.cuda.set_rng_state(tensors["cuda"])
            version, numbers, gauss = about["random"]["python"]
            random.setstate((version, tuple(numbers), gauss))
            _set_numpy_state(about["random"]["numpy"])


def _set(owner, name: str, value, device) -> bool:
    """Gives a module's buffer the value, or returns False if it has another shape or is none of the module's."""
    if name not in owner._buffers:
        return False
    buffer = owner._buffers[name]
    if buffer is None or (not _is_dense(buffer) and buffer.shape == value.shape):
        setattr(owner, name, value.to(device if buffer is None else buffer.device))
    elif buffer.shape != value.shape:
        return False
    elif any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape)):  # its elements share memory
        setattr(owner, name, value.to(buffer.device, buffer.dtype))
    else:
        buffer.copy_(value)
    return True


def _parse(content: bytes) -> tuple:
    """The header, and tensors by name."""
    try:
        length = int.from_bytes(content[:_LENGTH_BYTES], "little")
        if length > _MOST_ABOUT:
            raise ValueError("its header is too long")
        about = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
        tensors, at = {}, _LENGTH_BYTES + length
        for one in about["buffers"]:
            dtype = getattr(torch, one["dtype"])
            count = 1
            for size in one["shape"]:
                count *= int(size)
            size = count * torch.empty((), dtype=dtype).element_size()
            if count < 0 or at + size > len(content):
                raise ValueError("it is cut short")
            memory = torch.frombuffer(bytearray(content[at : at + size]), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
            value = memory.view(dtype).view(one["shape"])
            tensors[one["name"]] = torch.load(io.BytesIO(value.numpy().tobytes()), map_location="cpu", weights_only=True) if one.get("is_saved") else value
            at += size
        return about, tensors
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError, pickle.UnpicklingError) as error:
        raise ValueError(f"The buffers that were kept with the step cannot be read ({error}): remove the files named rank-*.program-* to go on without them.") from error


def _numpy_state():
    try:
        import numpy
    except ImportError:
        return None
    name, keys, *rest = numpy.random.get_state()
    return [name, keys.tolist(), *rest]


def _set_numpy_state(state) -> None:
    if state is None:
        return
    import numpy

    numpy.random.set_state((state[0], numpy.array(state[1], dtype=numpy.uint32), *state[2:]))
