"""Refuses gradients that the program asks of streamed parameters, which are in no graph of the program's. Used by
streaming.py."""

import functools
import weakref


from .._torch_private import END_OF_BACKWARD, current_graph_task_id

_SENTENCE = (
    "torch.autograd.grad() and backward(inputs=...) come to {}, and a streamed layer computes the gradients of all "
    "its parameters at once: "
    "call backward() without inputs, or train without stream=."
)
_INPUTS = 3  # among the arguments after the outputs
_streamed: dict = {}  # name, and a weak reference to its Streaming, by the parameter's id


def sentence_about(name: str) -> str:
    return _SENTENCE.format(name)


def refuse(names: dict, streaming) -> None:
    """``names``: of parameters by their ids. Lasts while ``streaming`` is open."""
    me = weakref.ref(streaming)
    _streamed.update((key, (name, me)) for key, name in names.items())
    weakref.finalize(streaming, _forget, list(names), me).atexit = False
    _look_at_inputs()


def _forget(keys: list, me) -> None:
    for key in keys:
        if key in _streamed and _streamed[key][1] is me:
            del _streamed[key]


def _check(asked) -> None:
    for one in asked:
        name, me = _streamed.get(id(one), ("", lambda: None))
        streaming = me()
        if streaming is not None and streaming.is_open:
            raise RuntimeError(sentence_about(name))


def _look_at_inputs() -> None:
    """Watches the private function in which both ``backward()`` and ``torch.autograd.grad()`` end."""
    original = getattr(*END_OF_BACKWARD, None)
    if original is None or hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def run(outputs, *arguments, **settings):
        if len(arguments) > _INPUTS and current_graph_task_id() == -1:  # else a streamed layer asks itself
            _check(arguments[_INPUTS])
        return original(outputs, *arguments, **settings)

    run._nearstep = True
    setattr(*END_OF_BACKWARD, run)
