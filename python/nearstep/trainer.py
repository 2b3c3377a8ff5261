"""Logs the optimizer's statistics. Used by programs that train by ``transformers.Trainer`` or a class made of it, such
as TRL's trainers.

from nearstep.trainer import LogStats

trainer = Trainer(model, arguments, train_dataset=rows, optimizers=(opt, None))
trainer.add_callback(LogStats(trainer))
"""

from __future__ import annotations

from transformers import TrainerCallback

from ._optimizer import Optimizer


def _numbers(stats: dict, prefix: str) -> dict[str, float]:
    """The numbers of ``stats`` under names with slashes, of which TensorBoard and W&B make groups."""
    found = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            found.update(_numbers(value, f"{prefix}{name}/"))
        elif name not in ("step", "is_of_step"):
            found[f"{prefix}{name}"] = float(value)
    return found


def _nearstep_of(optimizer) -> Optimizer:
    while not isinstance(optimizer, Optimizer):  # Accelerate wraps it
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(
                f"The Trainer's optimizer is {type(optimizer).__name__}: pass nearstep's to it, as in "
                "Trainer(..., optimizers=(opt, None))."
            )
        optimizer = inner
    return optimizer


class LogStats(TrainerCallback):
    """Logs ``opt.stats()`` as ``nearstep/...`` whenever the Trainer logs a loss, through the Trainer's own log: so the
    numbers reach its history, and TensorBoard, W&B or what else ``report_to`` names."""

    def __init__(self, trainer):
        self._trainer = trainer

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is None or "loss" not in logs:  # an evaluation, or what this logs
            return
        stats = _nearstep_of(self._trainer.optimizer).stats()
        if stats:
            self._trainer.log(_numbers(stats, "nearstep/"))
