"""Recorded decode steps: which batches take one, and what happens where there is no memory to record."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.decode_graphs import Compute, CudaRecorder, DecodeGraphs, Recording, Repeating

CPU = torch.device("cpu")


def decodes(*ids: int, context: int = 20) -> Batch:
    """A batch of sequences that have one new token each."""
    num = len(ids)
    group = GroupBatch(torch.arange(num), torch.ones(num, 2, dtype=torch.int32))
    lens = torch.full((num,), context, dtype=torch.int32)
    starts = torch.arange(num + 1, dtype=torch.int32)
    rows = torch.arange(num)
    return Batch(torch.tensor(ids), lens.long() - 1, starts, lens, rows, (group,), (1,) * num, (context,) * num)


def doubled(batch: Batch) -> Tensor:
    return batch.token_ids[:, None] * 2.0


class ShortOfMemory:
    """A recorder that has memory for so many."""

    def __init__(self, num_left: int) -> None:
        self.num_left, self.num_asked = num_left, 0

    def __call__(self, compute: Compute, batch: Batch) -> tuple[Recording, Tensor]:
        self.num_asked += 1
        if not self.num_left:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.num_left -= 1
        return Repeating.record(compute, batch)


def test_what_cannot_be_recorded_for_lack_of_memory_is_left_to_be_launched_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "engine")
    recorder = ShortOfMemory(1)
    graphs = DecodeGraphs(doubled, CPU, 4096, recorder)
    recorded = graphs.run(decodes(5, 6, 7))
    assert recorded is not None
    assert recorded.tolist() == [[10.0], [12.0], [14.0]]
    assert [graphs.run(decodes(5)), graphs.run(decodes(5, 6)), graphs.run(decodes(5))] == [None, None, None]
    assert recorder.num_asked == 2
    [warning] = caplog.messages
    assert "--enforce-eager" in warning
    assert "Tried to allocate 20.00 MiB" in warning


def test_what_was_recorded_before_memory_ran_out_goes_on() -> None:
    graphs = DecodeGraphs(doubled, CPU, 4096, ShortOfMemory(1))
    graphs.run(decodes(5, 6, 7, 8))
    assert graphs.run(decodes(1)) is None
    again = graphs.run(decodes(3, 4, 9))
    assert again is not None
    assert again.tolist() == [[6.0], [8.0], [18.0]]


def test_another_error_of_a_recording_is_not_taken_for_lack_of_memory() -> None:
    def record(compute: Compute, batch: Batch) -> tuple[Recording, Tensor]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        DecodeGraphs(doubled, CPU, 4096, record).run(decodes(1))


class _Stream:
    def wait_stream(self, other: object) -> None: ...


class _Capture:
    """As torch leaves a recording that an error went through: with another one, that it was invalidated."""

    def __init__(self, inner: type[Exception] | None, text: str) -> None:
        self.inner, self.text = inner, text

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        if self.inner is not None:
            raise self.inner(self.text)


@pytest.mark.parametrize(
    ("raised", "at_exit", "is_shortage"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "capture was invalidated", True),
        (None, "CUDA error: out of memory", True),
        (ValueError("a shape"), "capture was invalidated", False),
    ],
)
def test_lack_of_memory_is_told_from_other_ends_of_a_recording(
    monkeypatch: pytest.MonkeyPatch, raised: Exception | None, at_exit: str, is_shortage: bool
) -> None:
    calls: list[int] = []

    def compute(batch: Batch) -> Tensor:
        calls.append(1)
        if len(calls) == 2 and raised is not None:
            raise raised
        return doubled(batch)

    for name, value in (
        ("graph_pool_handle", lambda: (0, 0)),
        ("Stream", _Stream),
        ("current_stream", _Stream),
        ("stream", lambda stream: _Capture(None, "")),
        ("CUDAGraph", object),
        ("graph", lambda graph, pool: _Capture(RuntimeError, at_exit)),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    with pytest.raises(RuntimeError) as found:
        CudaRecorder()(compute, decodes(1))
    assert isinstance(found.value, torch.OutOfMemoryError) == is_shortage
