"""Streamed models train to the same bits as resident ones, with any number of slots; on the CPU, where slots are host
memory as well. One process, one rank."""

import copy
import re

import launcher
from package import Package

launcher.need("transformers", "peft")

import peft
import torch

import nearstep
import networks


class Runs(Package):
    """Runs of streamed models, which are compared bit by bit."""

    def model(self, name="gpt2", layers=4):
        """More layers than slots, and dropout, whose random numbers must come again when layers are recomputed."""
        model = networks.make(name)
        torch.manual_seed(6)
        changes = {
            "gpt2": {"n_layer": layers, "resid_pdrop": 0.1, "attn_pdrop": 0.1},
            "llama": {"num_hidden_layers": layers},
        }[name]
        return type(model)(type(model.config)(**{**model.config.to_dict(), **changes})).train()

    def backward(self, model, number):
        torch.manual_seed(number)
        model(**networks.inputs("gpt2", 2, torch.Generator().manual_seed(number))).loss.backward()

    def steps(self, model, opt, first, last, micro_batches=1):
        losses = []
        for step in range(first, last):
            for micro in range(micro_batches):
                generator = torch.Generator().manual_seed(10 * step + micro)
                torch.manual_seed(100 * step + micro)
                loss = model(**networks.inputs("gpt2", 2, generator)).loss
                (loss / micro_batches).backward()
                losses.append(loss.item())
            opt.step()
            opt.zero_grad()
        return losses

    def trained(self, model, path, stream=None, micro_batches=1, **settings):
        """Losses, digest and weights of a run, with its optimizer closed."""
        _, opt = self.make(
            nearstep.groups(model),
            path=self.folder / path,
            stream=stream,
            accumulation=micro_batches,
            config={},
            **settings,
        )
        losses = self.steps(model, opt, 0, 4, micro_batches)
        digest = opt.masters_digest()
        return losses, digest, self.weights_after(model, opt)

    def weights_after(self, model, opt):
        opt.close()
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    def assert_equal_runs(self, one, other):
        self.assertEqual(one[:2], other[:2])
        self.assert_equal_tensors(one[2], other[2])


class Streamed(Runs):
    def test_any_number_of_slots_has_the_bits_of_a_resident_model(self):
        """The models have a tied head, micro-batches, and two architectures."""
        for name, micro_batches in (("gpt2", 2), ("llama", 1)):
            model = self.model(name)
            resident = self.trained(copy.deepcopy(model), f"resident-{name}", micro_batches=micro_batches)
            for slots in (2, 3, 4, 9):
                with self.subTest(name, slots=slots):
                    streamed = self.trained(
                        copy.deepcopy(model), f"{name}-{slots}", nearstep.Stream(slots=slots), micro_batches
                    )
                    self.assert_equal_runs(streamed, resident)

    def test_gradients_leave_in_backward_also_after_a_dropped_step(self):
        """The gradients of all layers have no room together, unless sums of several passes are counted."""
        for passes, wait in ((1, False), (2, True)):
            digests = set()
            for stream in (None, nearstep.Stream(slots=2)):
                _, opt = self.make(
                    nearstep.groups(model := self.model()),
                    path=self.folder / f"dropped-{passes}-{stream}",
                    stream=stream,
                    accumulation=passes,
                    config={},
                )
                opt.resume()
                for number in range(4):
                    for _ in range(passes):
                        self.backward(model, number)
                    if stream and number > 1:
                        self.assertEqual(any(value is not None for value in opt._intake._sums.values), wait)
                    if number != 1:
                        opt.step()
                    opt.zero_grad()
                digests.add(opt.masters_digest())
                opt.close()
            self.assertEqual(len(digests), 1)

    def test_a_run_resumes_streamed_or_resident(self):
        model = self.model()
        whole = self.trained(copy.deepcopy(model), "whole")
        first = copy.deepcopy(model)
        _, opt = self.make(nearstep.groups(first), stream=nearstep.Stream(slots=2))
        losses = self.steps(first, opt, 0, 2)
        opt.close()
        for stream in (nearstep.Stream(slots=3), None):
            if stream:
                with nearstep.empty():
                    again = type(model)(model.config).train()
            _, opt = self.make(nearstep.groups(again), stream=stream)
            self.assertEqual(opt.resume(), 2 if stream else 3)
            losses += self.steps(again, opt, opt.steps, opt.steps + 1)
            digest = opt.masters_digest()
            opt.close()
        self.assertEqual((losses, digest), whole[:2])

    def test_parameters_pass_through_the_slots_and_are_read_outside_of_steps(self):
        model = self.model(layers=3)
        _, opt = self.make(nearstep.groups(model), stream=nearstep.Stream(slots=2), fresh=True)
        self.steps(model, opt, 0, 2)
        layers = model.transformer.h
        vector = opt._conductor.vector()
        with torch._C.DisableTorchFunctionSubclass():  # else the look itself would bring them home
            outside = [
                not 0 <= layer.mlp.c_fc.weight.data_ptr() - vector.data_ptr() < vector.numel() for layer in layers
            ]
        self.assertEqual(outside, [True, True, False], "after backward the first two are in slots")
        opt.synchronize()
        self.assertTrue(all(0 <= p.data_ptr() - vector.data_ptr() < vector.numel() for p in layers.parameters()))
        batch = networks.inputs("gpt2", 2, torch.Generator().manual_seed(1))
        with torch.no_grad():
            loss = model.eval()(**batch).loss.item()
        opt.export(self.folder / "exported")
        loaded = type(model).from_pretrained(self.folder / "exported")
        self.assert_equal_tensors(model.state_dict(), loaded.state_dict())
        del vector
        opt.close()
        with torch.no_grad():
            self.assertEqual(loaded(**batch).loss.item(), loss)
            self.assertEqual(model(**batch).loss.item(), loss)
        model.train()(**batch).loss.backward()
        self.assertTrue(all(p.grad is not None for p in model.parameters()), "a plain module again")

    def test_lora_streams_its_frozen_base(self):
        runs = []
        for stream in (None, nearstep.Stream(slots=2)):
            torch.manual_seed(3)
            settings = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "down_proj"])
            runs.append(
                self.trained(peft.get_peft_model(self.model("llama"), settings), f"lora-{stream is None}", stream)
            )
        self.assert_equal_runs(*runs)

    def test_the_memory_decides_the_number_of_slots_and_a_line_says_so(self):
        model = self.model(layers=4)
        kept = sum(one.numel() * 4 for name, one in model.named_parameters() if ".h." not in name)
        slot = sum(p.numel() * 4 for p in model.transformer.h[0].parameters())
        for count in (2, 3, 9):
            _, opt = self.make(
                nearstep.groups(copy.deepcopy(model)),
                path=self.folder / str(count),
                stream=nearstep.Stream(gpu_memory_gb=(1.02 * kept + (count + 0.4) * slot) / 1e9),
            )
            self.assertEqual(
                re.findall(r"nearstep: 4 layers of at most \S+ GB pass through (\d) slots", self.said_by(opt.resume)),
                [str(min(4, count))],
            )
        _, opt = self.make(
            nearstep.groups(copy.deepcopy(model)), stream=nearstep.Stream(gpu_memory_gb=(kept + slot) / 1e9)
        )
        for _ in range(2):
            self.refuses(ValueError, f"gpu_memory_gb={(kept + slot) / 1e9:g}", opt.resume)
        self.assertFalse(any(self.path.glob("*.manifest")), "refused before the state is written")

    def test_what_cannot_be_streamed_is_refused(self):
        for settings, stated in (
            ({}, ("gpu_memory_gb", "slots")),
            ({"slots": 2, "gpu_memory_gb": 1}, ("gpu_memory_gb", "slots")),
            ({"slots": 1}, ("slots=1", 2)),
            ({"gpu_memory_gb": -1}, "gpu_memory_gb=-1"),
            ({"slots": 2, "activations": "disk"}, ("activations='disk'", '"gpu"', '"host"')),
        ):
            self.refuses(ValueError, stated, lambda: nearstep.Stream(**settings))
        stream = nearstep.Stream(slots=2)
        self.refuses(
            ValueError, "nearstep.groups(module)", lambda: self.make(list(self.model().parameters()), stream=stream)
        )
        self.refuses(ValueError, ("stream=", "ModuleList"), lambda: self.make(torch.nn.Linear(4, 4), stream=stream))
        mixed = self.model()
        mixed.transformer.h[1].bfloat16()
        self.refuses(
            ValueError, ("torch.float32", "torch.bfloat16"), lambda: self.make(nearstep.groups(mixed), stream=stream)
        )


if __name__ == "__main__":
    launcher.main()
