"""Where the time of a step on a GPU goes, from PyTorch's profiler. Used by end_to_end_worker.py (--trace).

traced(work) does the work and returns a summary: per stream the milliseconds of each kind of work, the kernels that
take most of all, and the gaps of the stream that has most kernels, with what other streams did meanwhile. Sums of kinds
of two programs show what is slower where; gaps show what waits. Short gaps are the time between two kernels. A pass
begins where that stream copies something to the GPU: the same products take longer where other kernels have a part of
the GPU.
"""

import collections
import re

import torch

KINDS = {
    "copy to the GPU": "Memcpy HtoD",
    "copy to the host": "Memcpy DtoH",
    "copy on the GPU": "Memcpy",
    "fill": "Memset",
    "nearstep": "nearstep::",
    "attention": "flash|fmha|attention",
    "product": "gemm|nvjet|cutlass|xmma|cublas",
    "compiled": "triton_",
    "AdamW": "multi_tensor_apply",
}
SHORT_MS = 0.2
MOST_GAPS = 12
MOST_KERNELS = 16


def kind_of(name):
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other")


def overlap_ms(events, begin, end):
    """Milliseconds of each kind between two times, with the number of the stream before it."""
    found = collections.Counter()
    for stream, name, from_ns, to_ns in events:
        both = min(to_ns, end) - max(from_ns, begin)
        if both > 0:
            found[f"{stream}: {kind_of(name)}"] += both / 1e6
    return dict(found.most_common(4))


def passes(events, last):
    """``events``: of one stream, by their begin. Milliseconds from each copy to the GPU to the next one, and of each
    kind of work.
    """
    begun = []
    for _, name, begin, end in events:
        kind = kind_of(name)
        if kind == "copy to the GPU":
            begun.append((begin, collections.Counter()))
        if begun:
            begun[-1][1][kind] += (end - begin) / 1e6
    ends = [*(begin for begin, _ in begun[1:]), last]
    return [{"ms": (end - begin) / 1e6, **dict(kinds.most_common(4))} for (begin, kinds), end in zip(begun, ends)]


def summary(events):
    """``events``: stream, name, begin and end in ns, of one GPU."""
    streams, kernels = collections.defaultdict(collections.Counter), collections.Counter()
    for stream, name, begin, end in events:
        streams[stream][kind_of(name)] += (end - begin) / 1e6
        kernels[name[:100]] += (end - begin) / 1e6
    if not streams:
        return {}
    first, last = min(event[2] for event in events), max(event[3] for event in events)
    copies = [kind for kind in KINDS if kind.startswith("copy")]
    model = max(streams, key=lambda stream: sum(ms for kind, ms in streams[stream].items() if kind not in copies))
    others = [event for event in events if event[0] != model]
    of_model = sorted((event for event in events if event[0] == model), key=lambda event: event[2])
    gaps, until, busy, before = [], first, 0, ""
    for _, name, begin, end in of_model:
        if begin > until:
            gaps.append((begin - until, until, before, name))
        busy += max(0, end - max(begin, until))
        until, before = max(until, end), name
    gaps.append((last - until, until, before, ""))
    short = [gap for gap in gaps if gap[0] < SHORT_MS * 1e6]
    longest = sorted(gaps, reverse=True)[:MOST_GAPS]
    return {
        "ms": (last - first) / 1e6,
        "model_stream": model,
        "busy_ms": busy / 1e6,
        "short_gaps_ms": sum(gap[0] for gap in short) / 1e6,
        "long_gaps_ms": sum(gap[0] for gap in gaps) / 1e6 - sum(gap[0] for gap in short) / 1e6,
        "gaps": [
            {
                "ms": ms / 1e6,
                "at_ms": (at - first) / 1e6,
                "after": one[:60],
                "before": other[:60],
                "meanwhile": overlap_ms(others, at, at + ms),
            }
            for ms, at, one, other in longest
            if ms >= SHORT_MS * 1e6
        ],
        "passes": passes(of_model, last),
        "kernels": dict(kernels.most_common(MOST_KERNELS)),
        "streams": {stream: dict(kinds.most_common()) for stream, kinds in streams.items()},
    }


def traced(work):
    """Does the work, and returns the summary."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return summary(
        [
            (event.device_resource_id(), event.name(), event.start_ns(), event.end_ns())
            for event in profiler.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and not event.is_user_annotation()
        ]
    )
