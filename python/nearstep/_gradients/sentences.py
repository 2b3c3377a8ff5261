"""Sentences of nearstep's about gradients. Used by intake.py."""

NOTHING_CAME = (
    "no parameter of this optimizer has a gradient in this step. If the model was wrapped or got other parameters "
    "after the "
    "optimizer was made, as by FullyShardedDataParallel or fully_shard(), nothing is trained: make the optimizer "
    "afterwards."
)


def has_left(name: str) -> str:
    return (
        f"The gradient of {name} has left: nearstep takes gradients during backward. To clip, pass clip_norm=... to "
        "the "
        "optimizer in place of clip_grad_norm_. To read or change p.grad, pass keep_gradients=True: gradients then "
        "stay until "
        "step()."
    )


def comes_once_more(name: str, passes: int, is_streamed: bool) -> str:
    """``passes``: backward passes of a step."""
    if is_streamed:
        return (
            f"The gradient of {name} comes once more, and that of this step has left. A streamed layer's parameter "
            "gets it at "
            "once if it is used within its layer only: a penalty on weights, another layer that reads it or a "
            "checkpoint with "
            f"use_reentrant=True adds to it, as another backward() does. Pass accumulation={passes + 1} or more, "
            "with which "
            "gradients wait for that; to drop the step, call zero_grad() first."
        )
    return (
        f"The gradient of {name} comes once more, and that of this step has left: backward runs {passes} times for a "
        "step, as "
        "before. Pass accumulation=N for N times, or keep_gradients=True if the number changes; to drop the step, call "
        "zero_grad() first."
    )


def used_once_more(name: str) -> str:
    return (
        f"The gradient of {name} that an earlier step used is still in p.grad, and PyTorch would use it once more: "
        "call zero_grad() after step(), or make the optimizer with keep_gradients=True."
    )


def seen_by_older_hook(name: str) -> str:
    return (
        f"A hook on {name} that was registered before the optimizer was made sees the gradient of one backward pass, "
        "where PyTorch has the sum: make the optimizer with keep_gradients=True, or run backward() once per step."
    )
