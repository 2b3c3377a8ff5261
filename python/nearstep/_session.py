"""The engine of one optimizer, from its first use on, and what passes between it and the model. Used by
_optimizer.py.
"""

from __future__ import annotations

import os
import sys
import time

import torch

from ._torch_private import current_graph_task_id, temporarily_clear_interpreter_stack
from . import _engine, _ranks
from ._gradients.intake import Intake
from ._model import description
from ._model.outside import outside_inference
from ._model.groups import DTYPES, check_formats
from ._model.parameters import Parameters
from ._saving import extra
from ._saving.program import Program
from ._starting.begin import begin_state
from ._starting.first_calls import make_first_calls
from ._starting.names import file_name
from ._starting.settings import values_of_all
from ._starting import waiting
from ._undivided import undivided
from ._weakly import weakly

_Kind = _engine.StartRequest.Kind


class Session:
    """``layout``: see lay_out(); ``settings``: of the engine; ``name``: the engine's name of the optimizer;
    ``weights``: see Weights, or None; ``streaming``: see Streaming, or None; ``intake``: see Intake."""

    def __init__(
        self,
        layout,
        module,
        settings: list,
        name: str,
        weights,
        seed: int,
        is_fresh: bool,
        program: Program,
        intake: Intake,
        streaming,
    ):
        self.layout, self.module, self.program, self.intake, self.streaming = layout, module, program, intake, streaming
        self._settings, self._name, self._weights, self._seed, self._is_fresh = settings, name, weights, seed, is_fresh
        self.conductor = None
        self.parameters: Parameters | None = None
        self.extra = None  # what save() was given for the step that the run began from
        self.saved = (-1, "")  # the step of the last checkpoint of this process, and its path
        self.device: torch.device | None = None
        self._start_seconds: dict = {}
        self._said_skipped = 0
        self._is_expected = False  # whether the engine knows that a step comes
        self._is_filling = False  # whether the state may still get its start values
        # Where this rank is one of several that have an engine each, see _local: opens the engine as Conductor.open()
        # when the ranks meet; the state of another layout, or None; whether this rank speaks for all; processes of the
        # host, 0: ranks find each other by MPI; these ranks, and the elements of all their parameters.
        self.open_together, self.carried, self.speaks, self.processes_beside, self.whole = None, None, True, 0, None

    @property
    def has_begun(self) -> bool:
        return self.conductor is not None

    @property
    def stream_seconds(self) -> dict:
        """See Optimizer.stats()."""
        return self.streaming.seconds if self.streaming else {}

    @property
    def start_seconds(self) -> dict:
        """Seconds of the parts of the start: memory and files; values to and from the host, with all that waits for the
        state; and the state itself, a part of which may be written during the first step."""
        return {**self._start_seconds, "state": self.conductor.facts()["start_s"]}

    # --- Start ---

    def _check_launch(self) -> None:
        params = self.layout.params
        if not params:
            raise RuntimeError(
                "This optimizer has no state, since nothing is trained: all parameters are frozen "
                "(requires_grad=False)."
            )
        make_first_calls()
        devices = {p.device for p in params} if self.streaming is None else self.streaming.devices(params)
        check_formats(params, self.layout.names)
        if len(devices) > 1 or any(device.type not in ("cpu", "cuda") for device in devices):
            raise ValueError(
                f"The parameters are on {', '.join(sorted(map(str, devices)))}: nearstep takes one CPU or one CUDA "
                "device per rank."
            )
        self.device = devices.pop()

    def _make_conductor(self, encodes, of_program: list):
        layout, on_gpu = self.layout, self.device.type == "cuda"
        return _engine.Conductor(
            settings=self._settings,
            tensors=[
                (name, list(p.shape), group) for name, p, group in zip(layout.names, layout.params, layout.group_of)
            ],
            tensors_of_blocks=[len(block.tensors) for block in layout.blocks],
            dtype=DTYPES[layout.dtype],
            model=description.of_model(self.module, layout.names, layout.params, _engine.moments_of(self._name)),
            granted_devices=os.environ.get("NEARSTEP_CSDS", ""),
            gpu=self.device.index if on_gpu else None,
            gradient_stream=encodes.cuda_stream if on_gpu else 0,
            fills_gpu=self.streaming is None and not self.intake.is_limited,
            puts_at_once=not self.intake.takes,
            threads=0 if on_gpu else torch.get_num_threads(),
            keeps_parameters=self.streaming is None or not self.streaming.is_from_storage,
            needs_program=self.program.is_needed,
            processes_beside=self.processes_beside,
            of_program=of_program,
        )

    @outside_inference()
    @temporarily_clear_interpreter_stack()  # also in torch.func's transforms
    def begin(self, optimizer, is_resuming: bool, checkpoint: str) -> None:
        """Opens the state. Collective."""
        self._check_launch()
        _ranks.take_part()
        layout = self.layout
        # Gradients leave while backward, which was queued before, goes on.
        encodes = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
        began = time.perf_counter()
        conductor = self._make_conductor(
            encodes, values_of_all(optimizer._name, optimizer._compared, optimizer.param_groups, optimizer.defaults)
        )
        _ranks.close_others(optimizer, conductor.paths)
        going_on = _Kind.FROM if checkpoint else _Kind.RESUME_IF_ANY
        kind = _Kind.FRESH if self._is_fresh else going_on if is_resuming else _Kind.NONE
        needs_values = (self.open_together or type(conductor).open)(conductor, _engine.StartRequest(kind, checkpoint))
        if self.carried is not None:
            self.carried.pass_to(conductor)
        opened = time.perf_counter()
        vector = conductor.vector().view(layout.dtype)
        self.parameters = Parameters(
            layout.params,
            layout.names,
            [block.tensors for block in layout.blocks],
            conductor,
            vector,
            self.device,
            self.streaming,
        )
        try:
            if self.streaming:
                of_sums = self.intake.host_bytes(conductor, self.device)
                self.streaming.prepare(conductor, self.parameters, self.device, of_sums)
            lines, self._is_filling = begin_state(
                conductor,
                self.parameters,
                layout.params,
                self.module,
                self._weights,
                self._seed,
                needs_values,
                self.streaming,
                self.carried,
            )
            kept = conductor.program_state or (self.carried.program if self.carried is not None else b"")
            if kept:
                self.program.restore(kept, self.device)
            lines += filter(None, [conductor.steps and self.program.line(bool(kept))])
        except BaseException:
            self.parameters = None
            conductor.close()
            raise
        self.conductor = conductor
        self._start_seconds = {"open": opened - began, "values": time.perf_counter() - opened}
        found = os.path.dirname(conductor.found_checkpoint) or conductor.checkpoint_folder
        self.extra = (
            extra.read(os.path.dirname(checkpoint), conductor.steps)
            if checkpoint
            else extra.read(found, conductor.steps, conductor.lines)
        )
        if conductor.rank == 0 and self.speaks:
            print(
                f"nearstep {_engine.version()}: "
                f"{description.of_run(conductor, layout.params, self.device, self._is_filling, self.whole)}",
                *lines,
                sep="\nnearstep: ",
                file=sys.stderr,
            )
        if self.streaming:
            self.streaming.open()
        self.intake.open(
            conductor,
            self.parameters,
            self.device,
            encodes,
            weakly(optimizer._step_to_take),
            looks_late=optimizer._is_read_elsewhere,
        )

    # --- A step ---

    def bring(self, number: int, blocks: list) -> None:
        """Brings the values of the last step, before a forward that reads the blocks. ``number``: the hook's; 0: that
        of the whole module."""
        if not self.has_begun:
            return
        if torch.is_grad_enabled():
            self.expect_step()
        is_training = torch.is_grad_enabled() and current_graph_task_id() == -1  # not computed again in backward
        if is_training:
            self.intake.is_given_up = False
        if is_training and not self.intake.is_collecting and (number == 0 or not self.parameters.is_looked):
            self.parameters.look_for_written()
        for block in blocks:
            self.parameters.bring(block)
        if not is_training and not torch.is_grad_enabled():
            self.parameters.await_sent()
        if is_training and self.intake.is_collecting:
            self.intake.before_forward(begins=number == 0)

    def expect_step(self) -> None:
        """Gradients of another step will come."""
        if not self._is_expected:
            self.conductor.expect_step()
            self._is_expected = True

    @outside_inference()
    def end_step(self) -> bool:
        """Returns whether a step ends: none that the program dropped."""
        if self.intake.is_dropped():
            return False
        self.intake.hand_over_all(self.program.collect(self.device))
        with undivided():
            self.intake.end_step()
            self._is_expected = False
            self.parameters.end_step()
            if self.streaming:
                self.streaming.end_step()
        if self._is_filling:  # start values that are refused end the first step, which comes after them in any case
            self._is_filling = False
            with waiting.shown(self.conductor):
                self.conductor.await_start()
        return True

    @outside_inference()
    def after_step(self) -> None:
        if self.streaming:
            self.streaming.after_step(self.intake.bytes_on_the_way)
        self._say_skipped()

    def _say_skipped(self) -> None:
        """A line when gradients were not finite: at the first time, and whenever the number has doubled."""
        skipped = self.conductor.stats()["skipped"]
        first = 16 if self.layout.dtype == torch.float16 else 1  # fp16 finds its loss scale by skipping
        if self.conductor.rank == 0 and self.speaks and skipped >= max(first, 2 * self._said_skipped):
            self._said_skipped = skipped
            steps = "1 step was" if skipped == 1 else f"{skipped} steps were"
            print(
                f"nearstep: {steps} skipped, since a gradient was infinite or NaN; parameters and state stay as they "
                "are",
                file=sys.stderr,
            )

    # --- Between two steps ---

    @outside_inference()
    def write_back(self) -> None:
        """Brings what the program wrote into parameters into the state."""
        self.intake.give_up_dropped()
        if self.intake.told is None:
            self.parameters.write_back(is_thorough=True)

    @outside_inference()
    def synchronize(self) -> None:
        if not self.has_begun:
            return
        if self.intake.told is not None and self.parameters.are_values:
            raise RuntimeError(
                "The parameters are between two steps, since backward() has begun the update: call step() before you "
                "read them."
            )
        self.parameters.bring_all()
        if self.streaming and self.streaming.is_open:
            self.streaming.empty()

    def finish(self) -> None:
        if self.has_begun:
            self.conductor.finish()

    @outside_inference()
    def save(self, folder: str, content) -> str:
        folder = self.conductor.claim_checkpoint_folder(
            file_name("folder", folder) if folder else self.conductor.checkpoint_folder
        )
        failure = (
            extra.write(folder, self.conductor.steps, self.conductor.lines, content)
            if self.conductor.rank == 0
            else None
        )
        path = self.conductor.save(folder, self.program.content(self.device))
        if failure is not None:
            raise failure
        self.saved = (self.conductor.steps, os.path.abspath(path))
        return path

    # --- The end ---

    @outside_inference()
    def close(self) -> None:
        """Finishes the last step, and leaves a plain module. Collective."""
        if not self.has_begun:
            return
        try:
            self.intake.give_up_dropped()
            if self.intake.told is None:
                self.parameters.write_back(is_thorough=True, is_last=True)
                self.finish()
                self.synchronize()
        finally:
            if self.streaming:
                self.streaming.close()
            self.intake.close()
            end_engine(self.conductor, self.parameters)


def end_engine(conductor, parameters: Parameters) -> None:
    _ranks.leave_step(conductor)
    conductor.close(keeps_vector=parameters.are_kept)
    parameters.close()


def drop(conductor, parameters: Parameters, handles: list) -> None:
    """Ends the engine of an optimizer that nobody has any more. Gets no session, whose module may have the
    optimizer.
    """
    for handle in handles:
        handle.remove()
    if _ranks.is_left_in_step(conductor):  # the end of the process ends all ranks
        return
    try:
        if not _ranks.is_fork():  # its parent goes on
            parameters.leave()
            if parameters.device.type == "cuda":
                torch.cuda.synchronize(parameters.device)  # what it copies may be in the engine's memory
    finally:
        end_engine(conductor, parameters)
