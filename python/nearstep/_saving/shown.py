"""The part of an optimizer that shows facts about its last step, and its state as PyTorch's optimizers do; it refuses
copies of the state. Used by _optimizer.py."""

from __future__ import annotations

import torch

from .._local.wanted import may_turn_local
from . import state_dicts
from .state import OfAll


class ShownState(torch.optim.Optimizer):
    """The base class of ``Optimizer``, which has the state."""

    def stats(self) -> dict:
        """Facts about the last finished step: ``step``, ``norm`` of the gradient, ``is_skipped``, ``loss_scale`` of the
        next step, seconds of its phases (``gradients_s`` from the first gradient to the norm, ``update_s``,
        ``commit_s``), ``waited_s`` that this rank has waited for parameters since ``step()``, and ``bytes`` per link
        over all ranks. Totals so far: ``skipped`` steps, whose gradient was not finite, ``guesses`` that a step needs
        no clipping, with which its update began in backward, and ``misses``, the wrong ones. With
        ``Stream(host_memory_gb=...)`` ``read_s``, in which layers were read from storage, and ``awaited_s``, in which
        the program waited for that. Empty before the first step of this process."""
        stats = {**self._conductor.stats(), **self._session.stream_seconds} if self.has_begun else {}
        return stats if stats.get("is_of_step") else {}

    def progress(self) -> str:
        """The last finished step, for a progress line: ``bar.set_postfix_str(opt.progress())`` with tqdm."""
        stats = self.stats()
        if not stats:
            return "no step yet"
        skipped = ", skipped" if stats["is_skipped"] else ""
        return f"norm {stats['norm']:.3g}{skipped}, update {stats['update_s']:.2g} s, waited {stats['waited_s']:.2g} s"

    @property
    def state(self) -> OfAll:
        """The state of each parameter: ``step``, and the master and moments, which are read from storage when asked
        for.
        """
        return OfAll(self)

    @state.setter
    def state(self, value) -> None:
        if self._is_ready and value is not self.state:
            OfAll(self).clear()

    def _updates_of(self, i: int) -> int:
        return self._conductor.updates()[i] if self.has_begun else 0

    def _read_state(self, i: int) -> dict:
        self._begin()
        if not self._conductor.is_alone:
            raise RuntimeError(
                "Moments are read on one rank: call opt.save(), and read the checkpoint, where there are several."
            )
        self._write_back()
        found = self._conductor.read_state(i)
        shape = self._params[i].shape
        return {name: values.view(shape) for name, values in zip(("master", *self._moments), found) if name}

    @may_turn_local
    def state_dict(self) -> dict:
        """The parameter groups, and where the state is, which is not copied. If it is saved, as by ``torch.save``, a
        checkpoint of this step is written unless ``save()`` wrote one. Raises RuntimeError then if several ranks train,
        or if another step was taken since."""
        handle = self.register_state_dict_post_hook(
            ShownState._show_place, prepend=True
        )  # the program's hooks see all of it
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def _show_place(self, out: dict) -> None:
        updates = self._conductor.updates() if self.has_begun else [0] * len(self._params)
        out["state"] = {
            i: {"step": float(n)} for i, n in enumerate(updates)
        }  # also before the first: torch.distributed.checkpoint looks for it
        out["param_groups"][0][state_dicts.KEY] = state_dicts.shown(self)

    @may_turn_local
    def load_state_dict(self, state_dict: dict) -> None:
        """Returns to the step that the dictionary names: to its checkpoint, or to the state in ``path`` if that is at
        this step. Collective. Raises RuntimeError if training went on since."""
        place: dict = {}

        def before(_, given: dict) -> dict:
            place.update(state_dicts.place_of(given))
            state_dicts.check_reachable(self._conductor, place)
            return {
                "state": {},
                "param_groups": [
                    {key: value for key, value in group.items() if key != state_dicts.KEY}
                    for group in given["param_groups"]
                ],
            }

        handles = [
            self.register_load_state_dict_pre_hook(before),  # after the program's, which may change the dictionary
            self.register_load_state_dict_post_hook(lambda _: state_dicts.return_to(self, place), prepend=True),
        ]  # before the program's
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __deepcopy__(self, _):
        raise TypeError(
            "An optimizer whose state lies in storage cannot be copied: make another one with a path of its own."
        )

    def __reduce_ex__(self, _):
        raise TypeError(
            "An optimizer whose state lies in storage cannot be pickled: save opt.state_dict(), or call opt.save()."
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:  # GradScaler asks for it in its step()
        if not self._intake.takes:
            return False  # it unscales the gradients itself
        raise RuntimeError(
            "GradScaler finds no gradients, which nearstep takes during backward: leave it out; float16 parameters "
            "need opt.scale(loss).backward()."
        )
