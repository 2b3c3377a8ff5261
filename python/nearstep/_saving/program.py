"""Keeps what is durable with a step beside the optimizer state: the module's persistent buffers, what its
get_extra_state() returns and, on request, the random generators. See docs/formats/state-file.md. Used by
_session.py and _optimizer.py."""

from __future__ import annotations

import io
import json
import random
import warnings

import torch
from torch.nn.parameter import is_lazy

from .._torch_private import EXTRA_STATE_KEY_SUFFIX, PyTorchFileReader
from .._model.groups import plain_name

_LENGTH_BYTES = 8
_MOST_ABOUT = 1 << 26
_EXTRA = EXTRA_STATE_KEY_SUFFIX
_SMALL_BYTES = (
    1 << 20
)  # a buffer of at most this size is looked at in every step, a larger one when PyTorch counts a change


def _buffers(module):
    """Names and tensors of a module's persistent buffers."""
    seen = set()
    for path, owner in module.named_modules():
        for name, buffer in owner.named_buffers(recurse=False):
            if name not in owner._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield plain_name(f"{path}.{name}" if path else name), buffer


def _extras(module):
    """Names and modules of what state_dict() has from get_extra_state()."""
    for path, owner in module.named_modules():
        if type(owner).get_extra_state is not torch.nn.Module.get_extra_state:
            yield plain_name(f"{path}.{_EXTRA}" if path else _EXTRA), owner


def _is_dense(buffer) -> bool:
    """Whether its bytes and shape say what it holds."""
    return type(buffer) is torch.Tensor and buffer.layout is torch.strided and not buffer.is_quantized


def _on_host(buffer):
    """A copy, which is complete when the current stream has come here."""
    if buffer.device.type == "cpu":
        return buffer.contiguous().clone()
    return torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True).copy_(buffer, non_blocking=True)


def _saved(value):
    """The bytes that torch.save() writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _loaded(saved):
    """Returns what _saved() was given. PyTorch before 2.6 runs code of archives of other kinds, in spite of
    weights_only."""
    memory = io.BytesIO(saved.numpy().tobytes())
    is_zip = memory.getbuffer()[:4] == b"PK\x03\x04"
    if not is_zip or "constants.pkl" in PyTorchFileReader(memory).get_all_records():
        raise ValueError("a value is not one that torch.save() wrote")
    memory.seek(0)
    return torch.load(memory, map_location="cpu", weights_only=True)


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
        self._extras: dict = {}  # whether what a module's get_extra_state() returned could be loaded again, by its name
        if module is not None:
            self._versions = {
                name: self._version(b) for name, b in _buffers(module) if not is_lazy(b) and self._is_large(b)
            }

    @property
    def is_needed(self) -> bool:
        """Whether a start brings something back."""
        owned = self._module is not None and (*_buffers(self._module), *_extras(self._module))
        return self._keeps_random or bool(owned)

    @staticmethod
    def _is_large(buffer) -> bool:
        return buffer.numel() * buffer.element_size() > _SMALL_BYTES

    @staticmethod
    def _version(buffer) -> tuple:
        return (id(buffer), None if buffer.is_inference() else buffer._version)

    def _kept(self):
        """Buffers to keep: large ones only once they have changed."""
        for name, buffer in _buffers(self._module) if self._module is not None else ():
            if (
                buffer.is_meta
                or is_lazy(buffer)
                or (name in self._versions and self._versions[name] == self._version(buffer))
            ):
                continue
            if self._is_large(buffer):
                self._versions.pop(name, None)
            yield name, buffer

    def _kept_extras(self):
        """Names of modules' extra states, and their bytes. One that torch.load() would not read without running code is
        left out, and a warning says so."""
        for name, owner in _extras(self._module) if self._module is not None else ():
            if self._extras.get(name, True):
                saved = _saved(owner.get_extra_state())
                if name not in self._extras:
                    try:
                        _loaded(saved)
                        self._extras[name] = True
                    except Exception as error:
                        self._extras[name] = False
                        warnings.warn(
                            f"What {type(owner).__name__}.get_extra_state() returns is not kept with the steps "
                            f"({_first_line(error)}): "
                            "return tensors, numbers, texts, lists and dictionaries, or save it yourself."
                        )
                        continue
                yield name, saved

    def collect(self, device) -> tuple | None:
        """A header, addresses and bytes of memory, and the tensors that own it; None if there is nothing to keep. What
        lies on a GPU is copied in the current stream."""
        tensors = [(name, b.detach()) for name, b in self._kept()]
        about: dict = {"buffers": [], "random": None}
        if self._keeps_random:
            states = _random_states(device)
            tensors += states.items()
            about["random"] = {"names": list(states), "python": random.getstate(), "numpy": _numpy_state()}
        extras = list(self._kept_extras())
        if not tensors and not extras:
            return None
        kept = []
        for name, tensor in tensors:
            host = _on_host(tensor) if _is_dense(tensor) else _saved(tensor)
            kept.append(host)
            about["buffers"].append(
                {"name": name, "dtype": str(host.dtype).removeprefix("torch."), "shape": list(host.shape)}
            )
            if not _is_dense(tensor):
                about["buffers"][-1]["is_saved"] = True
        for name, saved in extras:
            kept.append(saved)
            about["buffers"].append({"name": name, "dtype": "uint8", "shape": list(saved.shape), "is_saved": True})
        text = json.dumps(about).encode()
        return (
            len(text).to_bytes(_LENGTH_BYTES, "little") + text,
            [(t.data_ptr(), t.numel() * t.element_size()) for t in kept],
            kept,
        )

    def content(self, device) -> bytes:
        """Returns what collect() finds as one piece of memory."""
        found = self.collect(device)
        if found is None:
            return b""
        header, _, tensors = found
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return header + b"".join(t.view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)

    def restore(self, content: bytes, device) -> None:
        """Raises ValueError for what is not whole, and warns of buffers that the module does not have."""
        try:
            about, values = _parse(content)
            generators = _generators(about["random"], values)
        except Exception as error:  # anybody may have written it
            raise ValueError(
                f"The buffers that were kept with the step cannot be read ({_first_line(error)}): go on from a "
                "checkpoint with opt.resume(checkpoint), "
                "or, if the model has none, leave keep_random out."
            ) from error
        self._restore_module(values, device)
        if self._keeps_random and generators is not None:
            _set_generators(generators, device)

    def _restore_module(self, values: dict, device) -> None:
        modules = (
            {plain_name(path): owner for path, owner in self._module.named_modules()}
            if self._module is not None
            else {}
        )
        of_modules: dict = {}
        for name, value in values.items():
            path, _, key = name.rpartition(".")
            of_modules.setdefault(path, {})[key] = value
            self._versions.pop(name, None)
        odd = []
        for path, own in of_modules.items():
            if path not in modules:
                odd += [f"{path}.{key}" for key in own]
                continue
            has_extra = _EXTRA in own and type(modules[path]).set_extra_state is not torch.nn.Module.set_extra_state
            extra = own.pop(_EXTRA, None)
            odd += [f"{path}.{key}" if path else key for key in _restore_buffers(modules[path], path, own, device)]
            if has_extra:
                modules[path].set_extra_state(extra)
        if odd:
            warnings.warn(
                f"The state holds buffers that this module does not have ({', '.join(odd[:3])}): they are left out."
            )

    def line(self, has_state: bool) -> str:
        """Returns a sentence for the user of a run that goes on; empty if there is nothing to say."""
        if self._module is None:
            return (
                "the optimizer was made from parameters and does not know the model's buffers, such as running "
                "means, which keep their values: "
                "make it from the module, as in AdamW(model), to have them with every step"
            )
        if not has_state and next(self._kept(), None) is not None:
            return "no buffers were kept with this step, so that those of the module keep their values"
        return ""


def _first_line(error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _fits(buffer, value) -> bool:
    """Whether the value can be written into the buffer as it is."""
    return buffer is None or (not is_lazy(buffer) and buffer.shape == value.shape)


@torch.no_grad()
def _restore_buffers(owner, path: str, values: dict, device) -> list:
    """Gives a module its buffers. Those whose sizes change, as a quantization observer's in its first forward, go
    through the module's own loading first. Returns names that it does not have."""
    devices = {name: buffer.device for name, buffer in owner._buffers.items() if buffer is not None}
    if not all(name in owner._buffers and _fits(owner._buffers[name], value) for name, value in values.items()):
        _load_own(owner, path, values)
    absent = []
    for name, value in values.items():
        if name not in owner._buffers:
            absent.append(name)
        elif _fits(owner._buffers[name], value):
            _set(owner, name, value, devices.get(name, device))
        else:  # an uninterrupted run has this size, too
            owner._buffers[name] = value.to(devices.get(name, device))
    return absent


def _load_own(owner, path: str, values: dict) -> None:
    prefix = path + "." if path else ""
    state = {prefix + name: value for name, value in values.items()}
    try:
        owner._load_from_state_dict(state, prefix, {"version": owner._version}, False, [], [], [])
    except Exception:  # without parameters some modules cannot load; the buffers are set all the same
        return


def _set(owner, name: str, value, device) -> None:
    """Gives a module's buffer a value of its shape."""
    buffer = owner._buffers[name]
    if buffer is None or not _is_dense(buffer):
        setattr(owner, name, value.to(device))
    elif any(
        stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape)
    ):  # its elements share memory
        setattr(owner, name, value.to(device, buffer.dtype))
    else:
        buffer.copy_(value)
        if buffer.device != device:  # the module's own loading left it on the host
            setattr(owner, name, buffer.to(device))


def _parse(content: bytes) -> tuple:
    """The header, and tensors by name."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > _MOST_ABOUT:
        raise ValueError("its header is too long")
    about = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    values, at = {}, _LENGTH_BYTES + length
    for one in about["buffers"]:
        dtype = getattr(torch, one["dtype"])
        count = 1
        for size in one["shape"]:
            count *= int(size)
        size = count * torch.empty((), dtype=dtype).element_size()
        if min(one["shape"], default=0) < 0 or at + size > len(content):
            raise ValueError("it is cut short")
        memory = (
            torch.frombuffer(bytearray(content[at : at + size]), dtype=torch.uint8)
            if size
            else torch.empty(0, dtype=torch.uint8)
        )
        value = memory.view(dtype).view(one["shape"])
        values[one["name"]] = _loaded(value) if one.get("is_saved") else value
        at += size
    return about, values


def _generators(about, values: dict):
    """The states of the random generators, each tried on a generator of its own; None if there are none. Takes
    PyTorch's out of ``values``."""
    if about is None:
        return None
    states = {name: values.pop(name) for name in about["names"]}
    version, numbers, gauss = about["python"]
    states["python"] = (version, tuple(numbers), gauss)
    random.Random().setstate(states["python"])
    torch.Generator().set_state(states["torch"])
    states["numpy"] = _checked_numpy(about["numpy"])
    return states


def _set_generators(states: dict, device) -> None:
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"], device if device.type == "cuda" else "cuda")
    random.setstate(states["python"])
    if states["numpy"] is not None:
        import numpy

        numpy.random.set_state(states["numpy"])


def _numpy_state():
    try:
        import numpy
    except ImportError:
        return None
    name, keys, *rest = numpy.random.get_state()
    return [name, keys.tolist(), *rest]


def _checked_numpy(state):
    """Returns the argument of NumPy's set_state(); None if nothing was kept or NumPy is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    if state is None:
        return None
    name, keys, *rest = state
    state = (name, numpy.array(keys, dtype=numpy.uint32), *rest)
    numpy.random.RandomState().set_state(state)
    return state
