"""Says how layers of a model are streamed. Made by programs as nearstep.Stream; streaming.py does what it says."""

from __future__ import annotations

from .._starting.settings import check_memory
from .._starting.suggestions import suggests

FEWEST_SLOTS = 2  # one computes while the next is loaded


class Stream:
    """Says that layers, the entries of the module's outermost lists, share a few slots of GPU memory. Other parameters,
    such as embeddings, and those that several layers share, stay on the GPU.

    ``gpu_memory_gb``: the GPU memory that this process may take. The first step runs with two slots, and its
    activations wait in host memory; what it leaves of the memory then holds these, all that backward needs of some
    layers, which compute once, and more slots. ``slots``: their number, in place of this; all layers compute twice.
    ``activations``: the same, and the inputs of layers wait for backward on the "gpu" or on the "host"; default: as the
    memory suffices.

    ``host_memory_gb``: the host memory that this process may take. Trained parameters then stay in storage: layers are
    read from the state ahead of their use, and the update writes new values there. Inputs of layers that wait on the
    host and do not fit there go to files beside the state. Default: all are in host memory."""

    @suggests
    def __init__(
        self,
        gpu_memory_gb: float | None = None,
        slots: int | None = None,
        activations: str | None = None,
        host_memory_gb: float | None = None,
    ):
        if (gpu_memory_gb is None) == (slots is None):
            raise ValueError("Stream takes one of gpu_memory_gb and slots.")
        if slots is not None and (not isinstance(slots, int) or slots < FEWEST_SLOTS):
            raise ValueError(f"slots={slots!r}: a stream needs at least {FEWEST_SLOTS} slots.")
        check_memory("gpu_memory_gb", gpu_memory_gb)
        check_memory("host_memory_gb", host_memory_gb)
        if activations not in (None, "gpu", "host"):
            raise ValueError(f'activations={activations!r}: they wait on the "gpu" or on the "host".')
        self.gpu_memory_gb, self.slots, self.activations, self.host_memory_gb = (
            gpu_memory_gb,
            slots,
            activations,
            host_memory_gb,
        )


def check_stream(stream, keep_gradients, gpu_memory_gb) -> None:
    """Raises TypeError for what is no Stream, and ValueError for arguments of the optimizer that do not go with one."""
    if stream is not None and not isinstance(stream, Stream):
        raise TypeError(f"stream is {stream!r}: give nearstep.Stream(...), whose help() says what it takes.")
    if stream is not None and keep_gradients:
        raise ValueError(
            "keep_gradients=True keeps all gradients on the GPU, which stream= is there to avoid: leave one of them "
            "out."
        )
    if stream is not None and gpu_memory_gb is not None:
        raise ValueError(
            "gpu_memory_gb= is given to the stream where there is one: nearstep.Stream(gpu_memory_gb=...)."
        )
