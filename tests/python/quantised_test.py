"""LoRA of peft beside frozen weights that torchao or bitsandbytes has quantised, resident and streamed, has the losses
of torch.optim.AdamW, and so has torchao's float8 training; what cannot be streamed or trained is refused. One process,
one rank. The CPU has no 4-bit products of torchao ("tinygemm"), so that 4-bit values are in bytes here."""

import copy
import unittest
import warnings

import launcher
from package import Package

launcher.need("transformers", "peft", "torchao")

import peft
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_

import nearstep
import networks

STEPS = 4
ABSENT = launcher.missing("bitsandbytes")
CONFIGURATIONS = {
    "int8": Int8WeightOnlyConfig(),
    "float8": Float8WeightOnlyConfig(),
    "int4": IntxWeightOnlyConfig(weight_dtype=torch.int4),
}


def by_bitsandbytes(model, bits):
    """Has its linear layers, but for the head, in 4 or 8 bits."""
    import bitsandbytes as bnb

    for owner in list(model.model.modules()):
        for name, linear in list(owner.named_children()):
            if type(linear) is torch.nn.Linear:
                shape = linear.in_features, linear.out_features
                if bits == 4:
                    made = bnb.nn.Linear4bit(*shape, bias=False, compute_dtype=torch.float32, quant_type="nf4")
                    made.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
                else:
                    made = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False)
                    made.weight = bnb.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
                setattr(owner, name, made.to("cpu"))
    setattr(model, f"is_loaded_in_{bits}bit", True)


class Quantised(Package):
    def lora(self, kind):
        """A tiny Llama with such weights, and LoRA beside them."""
        model = networks.make("llama")
        if kind in CONFIGURATIONS:
            quantize_(model.model.layers, CONFIGURATIONS[kind])
        else:
            by_bitsandbytes(model, kind)
        torch.manual_seed(3)
        settings = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return peft.get_peft_model(model, settings)

    def losses(self, model, opt):
        batches = (networks.inputs("llama", 2, torch.Generator().manual_seed(step)) for step in range(STEPS))
        return [networks.descend(model(**batch).loss, opt) for batch in batches]

    def check(self, kind, streams):
        """Compares the losses, and the frozen weights after close()."""
        model = self.lora(kind)
        trained = [p for p in model.parameters() if p.requires_grad]
        before = copy.deepcopy(model.state_dict())
        expected = self.losses(model, torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.01))
        for number, stream in enumerate(streams):
            with self.subTest(kind, stream=stream):
                mine = self.lora(kind)
                _, opt = self.make(mine, lr=1e-2, path=self.folder / f"{kind}-{number}", stream=stream, config={})
                for a, b in zip(expected, self.losses(mine, opt)):
                    self.assertAlmostEqual(a, b, delta=1e-5)
                opt.close()
                for name, p in mine.state_dict().items():
                    if "lora" not in name:
                        self.assertEqual(str(p), str(before[name]), name)

    def test_torchao_has_the_losses_of_torch_resident_and_streamed(self):
        for kind in CONFIGURATIONS:
            self.check(kind, (None, nearstep.Stream(slots=2)))

    @unittest.skipIf(ABSENT, ABSENT)
    def test_bitsandbytes_has_them_and_its_8_bits_are_not_streamed(self):
        self.check(4, (None, nearstep.Stream(slots=2)))
        self.check(8, (None,))
        model = self.lora(8)
        with self.assertRaisesRegex(ValueError, "4 bits"):
            self.make(model, stream=nearstep.Stream(slots=2))

    def in_float8(self, **settings):
        """Returns the same Llama, whose products but the head's are in float8 and are computed with fp32 numbers
        here."""
        model = networks.make("llama")
        return convert_to_float8_training(
            model,
            config=Float8LinearConfig(emulate=True, **settings),
            module_filter_fn=lambda module, name: "lm_head" not in name,
        )

    def test_float8_training_has_the_losses_of_torch_resident_and_streamed(self):
        expected = self.losses(model := self.in_float8(), torch.optim.AdamW(model.parameters(), lr=1e-3))
        for stream in (None, nearstep.Stream(slots=2)):
            with self.subTest(stream=stream):
                model = self.in_float8()
                _, opt = self.make(model, weight_decay=0.01, path=self.folder / f"float8-{stream}", stream=stream)
                for a, b in zip(expected, self.losses(model, opt)):
                    self.assertAlmostEqual(a, b, delta=1e-5)
        with self.assertRaisesRegex(ValueError, "enable_fsdp_float8_all_gather"):
            self.make(self.in_float8(enable_fsdp_float8_all_gather=True))

    def test_parameters_of_several_tensors_are_not_trained(self):
        model = networks.make("llama")
        quantize_(model.model.layers, CONFIGURATIONS["int8"])
        for p in model.parameters():
            p.requires_grad_(True)
        for stream in (None, nearstep.Stream(slots=2)):
            with self.subTest(stream=stream), self.assertRaisesRegex(ValueError, "freeze"):
                self.make(model, stream=stream)


if __name__ == "__main__":
    launcher.main()
