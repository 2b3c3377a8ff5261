"""The networks of bench/fine_tuning, all of Transformers, and batches for them."""

import functools

import numpy
import torch
import transformers

import fine_tuning_data as data

LORA_TARGETS = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn"],
    "vit": ["q_proj", "v_proj", "query", "value"],
    "bloom": ["query_key_value"],
}
LORA_TRAINED = {
    "bert": ["pooler", "classifier"],
    "gpt2": ["score"],
    "vit": ["classifier"],
    "bloom": None,
}  # besides the adapters, since they begin anew


def lora(model, network):
    import peft

    settings = peft.LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=LORA_TARGETS[network],
        modules_to_save=LORA_TRAINED[network],
    )
    return peft.get_peft_model(model, settings)


# --- Networks ---


def make(network, is_small):
    """The network before pretraining. BERT has 12.7 million parameters, BLOOM 7.6 million, ViT 0.7 million."""
    layers, width, heads = (
        (2, 32, 2) if is_small else {"bert": (6, 256, 4), "vit": (4, 128, 4), "bloom": (4, 192, 6)}[network]
    )
    if network == "vit":
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(
                num_hidden_layers=layers,
                hidden_size=width,
                num_attention_heads=heads,
                intermediate_size=3 * width,
                image_size=8,
                patch_size=2,
                num_channels=1,
                num_labels=4,
                hidden_dropout_prob=0.1,
            )
        )
    if network == "bloom":
        return transformers.BloomForCausalLM(
            transformers.BloomConfig(
                n_layer=layers,
                hidden_size=width,
                n_head=heads,
                vocab_size=data.VOCABULARY,
                hidden_dropout=0.1,
                use_cache=False,
                bos_token_id=data.CLS,
                eos_token_id=data.SEP,
                pad_token_id=data.PAD,
            )
        )
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            vocab_size=data.VOCABULARY,
            max_position_embeddings=128,
        )
    )


def load(network, folder):
    """The pretrained network by Transformers alone, with a new head for its task, in fp32."""
    make_it, heads, more = {
        "bert": (transformers.BertForSequenceClassification, ("bert.pooler", "classifier"), {"num_labels": 2}),
        "vit": (
            transformers.ViTForImageClassification,
            ("classifier",),
            {"num_labels": 10, "ignore_mismatched_sizes": True},
        ),
        "bloom": (transformers.BloomForCausalLM, ("lm_head",), {}),
        "gpt2": (
            transformers.GPT2ForSequenceClassification,
            ("score",),
            {"num_labels": 2, "pad_token_id": data.GPT2_PAD},
        ),
    }[network]
    model, about = make_it.from_pretrained(folder, output_loading_info=True, **more)
    absent = [name for name in about["missing_keys"] if not name.startswith(heads)]
    if absent:
        raise RuntimeError(
            f"{folder} lacks {', '.join(absent[:3])} of {network}: remove the folder and pretrain again."
        )
    return model.float()


# --- Batches ---


def windows(tokens, rows, length, generator):
    starts = generator.integers(0, len(tokens) - length, rows)
    return torch.from_numpy(tokens[starts[:, None] + numpy.arange(length)].astype(numpy.int64))


def masked_words(tokens, rows, generator):
    """BERT's own pretraining: of 15 % of the tokens 80 % become [MASK], 10 % another token, 10 % stay."""
    ids = windows(tokens, rows, 128, generator)
    ids[:, 0], ids[:, -1] = data.CLS, data.SEP
    chosen = torch.from_numpy(generator.random(ids.shape) < 0.15)
    chosen[:, 0] = chosen[:, -1] = False
    places = chosen.flatten().nonzero()[:, 0]
    labels = ids.flatten()[places]
    kind = torch.from_numpy(generator.random(len(places)))
    other = torch.from_numpy(generator.integers(data.FIRST_WORD, data.VOCABULARY, len(places)))
    ids.view(-1)[places] = torch.where(kind < 0.8, data.MASK, torch.where(kind < 0.9, other, labels))
    return {"input_ids": ids, "places": places, "labels": labels}


def text(tokens, rows, generator):
    ids = windows(tokens, rows, 128, generator)
    return {"input_ids": ids, "labels": ids}


def rotated_digits(images, rows, generator):
    """Images turned by 0, 90, 180 or 270 degrees; the label is the turn (Gidaris et al., 2018). No digit's class is
    used.
    """
    chosen = images[generator.integers(0, len(images), rows)]
    turns = generator.integers(0, 4, rows)
    turned = numpy.stack([numpy.rot90(image, turn) for image, turn in zip(chosen, turns)])
    return {"pixel_values": pixels(turned), "labels": torch.from_numpy(turns)}


def pixels(images):
    return torch.from_numpy(images.astype(numpy.float32) / 8 - 1)[:, None]


def classified(arrays, rows):
    """Rows of SST-2 or QNLI, as long as the longest of them."""
    longest = int(arrays["lengths"][rows].max() + 7) // 8 * 8
    ids = torch.from_numpy(arrays["ids"][rows, :longest].astype(numpy.int64))
    place = torch.arange(longest)
    is_text = place < torch.from_numpy(arrays["lengths"][rows].astype(numpy.int64))[:, None]
    batch = {
        "input_ids": ids,
        "attention_mask": is_text.long(),
        "labels": torch.from_numpy(arrays["labels"][rows].astype(numpy.int64)),
    }
    if "seconds" in arrays:
        seconds = torch.from_numpy(arrays["seconds"][rows].astype(numpy.int64))[:, None]
        batch["token_type_ids"] = ((place >= seconds) & is_text).long()
    return batch


def digits(arrays, rows):
    return {
        "pixel_values": pixels(arrays["images"][rows]),
        "labels": torch.from_numpy(arrays["labels"][rows].astype(numpy.int64)),
    }


def pretraining_batch(network, arrays, rows, generator):
    if network == "vit":
        return rotated_digits(arrays, rows, generator)
    return (masked_words if network == "bert" else text)(arrays, rows, generator)


def masked_loss(model, input_ids, places, labels):
    """The loss of BertForMaskedLM with its head on the masked places alone, which takes a seventh of the memory."""
    found = model.bert(input_ids).last_hidden_state.flatten(0, 1)[places]
    return transformers.modeling_outputs.MaskedLMOutput(
        loss=torch.nn.functional.cross_entropy(model.cls(found).float(), labels)
    )


def compute_masked_places(model):
    model.forward = functools.partial(masked_loss, model)
