"""Feeds recorded gradients to the engine, as recorded_gradients.cpp does: recorded_worker.py FILE FOLDER CODEC STEPS
RANKS. Prints the digest of the masters. With STEPS = 0 it writes FILE with random numbers instead.
"""

import sys

import torch

ROWS, COLUMNS, MOST_NUMBERS = 300, 257, 21
ELEMENTS = ROWS * COLUMNS + ROWS


def tensors(row):
    return row[:-ROWS].view(ROWS, COLUMNS).clone(), row[-ROWS:].clone()


def main(path, folder, codec, steps, ranks):
    if steps == 0:
        torch.manual_seed(5)
        torch.randn(MOST_NUMBERS * ELEMENTS).numpy().tofile(path)
        return
    import nearstep

    values = torch.from_file(path, size=(1 + ranks * steps) * ELEMENTS).view(-1, ELEMENTS)
    weight, bias = map(torch.nn.Parameter, tensors(values[0]))
    opt = nearstep.AdamW(
        [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}],
        lr=1e-2,
        path=folder,
        codec=codec,
        clip_norm=1.0,
        fresh=True,
    )
    for step in range(steps):
        weight.grad, bias.grad = tensors(values[1 + ranks * step + opt.rank])
        opt.step()
    digest = opt.masters_digest()
    if opt.rank == 0:
        print(digest)


main(*sys.argv[1:4], *map(int, sys.argv[4:]))
