"""Where a step's tokens are chosen: on the device that has its logits, as far as that can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.device import has_gpu_kernels
from engine.id_masks import Words
from engine.penalties import shifts_logits
from engine.sampler import GuidedError, Row, Sampled, SamplingError, allowed_to, checked, sample
from protocol.sampling import NO_LOGPROBS

Choose = Callable[[Tensor, Sequence[Row]], list[Sampled | SamplingError]]
"""A token for each row, from logits float32 ``[num_logits_rows, vocab]``: see ``sampler.sample``."""


def chooser(device: str) -> Choose:
    """That of one of engine.device."""
    return choose_on_device if has_gpu_kernels(device) else choose_on_host


def choose_on_host(logits: Tensor, rows: Sequence[Row]) -> list[Sampled | SamplingError]:
    """All of them, once the logits are there."""
    return sample(logits.cpu().numpy(), rows)


def choose_on_device(logits: Tensor, rows: Sequence[Row]) -> list[Sampled | SamplingError]:
    """By the GPU's kernel, which chooses what the host would, of the same logits, to the last token.

    Where log probabilities or changed logits are wanted, the logits of those rows alone go to the host, and what is
    chosen is chosen there. The two devices' logits themselves may differ, as the numerics of a worker say.
    """
    here = [place for place, row in enumerate(rows) if _needs_host(row)]
    there = [place for place, row in enumerate(rows) if not _needs_host(row)]
    made: dict[int, Sampled | SamplingError] = {}
    if there:
        made.update(zip(there, _chosen(logits, [rows[place] for place in there]), strict=True))
    if here:
        made.update(zip(here, _fetched(logits, [rows[place] for place in here]), strict=True))
    return [made[place] for place in range(len(rows))]


def _needs_host(row: Row) -> bool:
    wants_logits = row.forced_id >= 0 or row.sampling.logprobs != NO_LOGPROBS
    return wants_logits or shifts_logits(row.sampling, len(row.output_ids))


def _fetched(logits: Tensor, rows: Sequence[Row]) -> list[Sampled | SamplingError]:
    """What the host chooses of the logits of these rows."""
    wanted = sorted({row.logits_row for row in rows})
    places = {logits_row: place for place, logits_row in enumerate(wanted)}
    fetched = logits[torch.tensor(wanted, device=logits.device)]
    return choose_on_host(fetched, [replace(row, logits_row=places[row.logits_row]) for row in rows])


def _chosen(logits: Tensor, rows: Sequence[Row]) -> list[Sampled | SamplingError]:
    from kvferry_kernels.gpu import sampling

    masks: list[Words] = []
    asks: list[sampling.Ask] = []
    faults: list[GuidedError | None] = []
    for row in rows:
        asks.append(sampling.Ask(row.logits_row, temperature=0.0))
        faults.append(None)
        try:
            allowed = allowed_to(row, logits.shape[1])
        except GuidedError as error:
            faults[-1] = error
            continue
        if allowed is not None:
            masks.append(allowed)
        wants = row.sampling
        asks[-1] = sampling.Ask(
            row.logits_row,
            -1 if allowed is None else len(masks) - 1,
            wants.top_k,
            wants.temperature,
            wants.top_p,
            wants.min_p,
            wants.seed,
            row.choice,
            len(row.output_ids),
        )
    words = torch.from_numpy(np.stack(masks).view(np.int32)) if masks else None
    tokens = sampling.sample(
        logits,
        _upload(sampling.records(asks), logits.device),
        words if words is None else _upload(words, logits.device),
    )
    found = (checked(token, fault) for token, fault in zip(tokens.tolist(), faults, strict=True))
    return [token if isinstance(token, SamplingError) else Sampled(token, None) for token in found]


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for what it computes before."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
