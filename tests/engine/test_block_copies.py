"""Blocks between a device and the host's pool: the bytes, the card's stream by a twin of torch's, pinned memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from engine import block_copies
from engine.block_copies import ByIndex, InPieces, host_pieces
from engine.block_runs import runs
from engine.copy_stream import CudaStream
from engine.kv_cache import LayerCache, cache_bytes, split_cache
from engine.layout import CacheGroup, KVLayout
from engine.memory import host_memory_bytes, pinnable_bytes
from engine.pinned import pin
from engine.pool_memory import PoolMemory

LAYOUT = KVLayout((CacheGroup((0, 2), 2, 8), CacheGroup((1,), 1, 16)), "bfloat16", is_plain=True)
NUM_BLOCKS = 9


def noise(num_bytes: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num_bytes,), generator=random).to(torch.uint8)


def device_cache(seed: int) -> list[LayerCache]:
    return split_cache(noise(cache_bytes(LAYOUT, NUM_BLOCKS), seed), LAYOUT, NUM_BLOCKS)


def filled_pool(seed: int) -> PoolMemory:
    pool = PoolMemory(LAYOUT, NUM_BLOCKS)
    pool.buffer[:] = noise(len(pool.buffer), seed).numpy().tobytes()
    return pool


def of_pool(pool: PoolMemory, block: int) -> list[bytes]:
    """What io sees of a block, by group and layer."""
    layers = [layer for group in range(len(LAYOUT.groups)) for layer in pool.layers(group)]
    return [half[block].tobytes() for layer in layers for half in (layer.k, layer.v)]


def of_cache(cache: list[LayerCache], block: int) -> list[bytes]:
    """What a model sees of it, in the same order."""
    layers = [cache[number] for group in LAYOUT.groups for number in group.layers]
    return [half[block].view(torch.uint8).numpy().tobytes() for layer in layers for half in (layer.k, layer.v)]


@pytest.mark.parametrize("part_blocks", [1, 2, 100])
@pytest.mark.parametrize("blocks", [[4], [7, 0, 1, 5, 2, 8], []])
def test_blocks_arrive_byte_for_byte_and_all_others_stay(
    monkeypatch: pytest.MonkeyPatch, blocks: list[int], part_blocks: int
) -> None:
    monkeypatch.setattr(block_copies, "PART_BYTES", part_blocks * LAYOUT.block_bytes)
    cache, pool, other = device_cache(1), filled_pool(2), device_cache(3)
    before, others = filled_pool(2), device_cache(3)
    InPieces(cache, LAYOUT, host_pieces(pool.buffer, LAYOUT)).fetch(blocks)
    InPieces(other, LAYOUT, host_pieces(pool.buffer, LAYOUT)).place(blocks)
    for block in range(NUM_BLOCKS):
        is_copied = block in blocks
        assert of_pool(pool, block) == (of_cache(cache, block) if is_copied else of_pool(before, block))
        assert of_cache(other, block) == of_cache(cache if is_copied else others, block)


def test_a_plain_pool_has_each_block_in_one_piece_and_another_one_layer_after_layer() -> None:
    pool = filled_pool(1)
    pieces = host_pieces(pool.buffer, LAYOUT)
    assert b"".join(of_pool(pool, 3)) == pieces[3].numpy().tobytes()
    by_layer = KVLayout(LAYOUT.groups, LAYOUT.dtype)
    assert PoolMemory(by_layer, NUM_BLOCKS).layers(0)[0].k.flags.c_contiguous


def test_the_twin_copies_the_same() -> None:
    here, there = device_cache(1), device_cache(2)
    copies = ByIndex(here, there)
    copies.fetch([3, 1])
    assert [of_cache(there, block) == of_cache(here, block) for block in range(4)] == [False, True, False, True]
    there[0].k[0] = 7
    copies.place([0])
    assert of_cache(here, 0) == of_cache(there, 0)


@pytest.mark.parametrize(
    ("blocks", "found"),
    [
        ([], []),
        ([5], [(0, 1, 5, 6)]),
        ([1, 2, 3], [(0, 3, 1, 4)]),
        ([1, 3, 4, 9], [(0, 1, 1, 2), (1, 3, 3, 5), (3, 4, 9, 10)]),
    ],
)
def test_neighbors_are_copied_together(blocks: list[int], found: list[tuple[int, ...]]) -> None:
    assert [(here.start, here.stop, there.start, there.stop) for here, there in runs(blocks)] == found


class Card:
    """Torch's side of a card, writing down in which order what is asked of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.streams = ["compute"]

    def Stream(self, device: torch.device) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(name="copies", device=device, wait_stream=lambda other: self.say("copies", other.name))

    def say(self, *words: str) -> None:
        self.said.append(" ".join(words))

    def current_stream(self, device: torch.device | None = None) -> SimpleNamespace:
        name = self.streams[-1]
        return SimpleNamespace(name=name, wait_event=lambda event: self.say(name, "waits for", event.name))

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        self.streams.append(stream.name)
        yield
        self.streams.pop()

    def Event(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            name="event",
            record=lambda stream: self.say("recorded on", stream.name),
            query=lambda: False,
            synchronize=lambda: self.say("host waits"),
        )


def test_a_cards_copies_wait_for_what_was_computed_and_computing_waits_only_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card()
    for name in ("Stream", "current_stream", "stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(card, name))
    copy = CudaStream(torch.device("cuda", 0)).run(lambda: card.say("work on", card.current_stream().name))
    assert card.said == ["copies compute", "work on copies", "recorded on copies"]
    assert not copy.is_done()
    copy.come_first()
    copy.finish()
    assert card.said[3:] == ["compute waits for event", "host waits"]


class Runtime:
    """CUDA's runtime, which pins or refuses."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.calls: list[tuple[str, int]] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.calls.append(("register", size))
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", address))
        return self.answer


def test_a_pool_that_is_too_large_for_the_hosts_memory_is_not_pinned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "engine")
    pieces = host_pieces(filled_pool(1).buffer, LAYOUT)
    pin(pieces, torch.device("cpu"), pieces.nbytes - 1)()  # would fail if it asked CUDA
    assert [message.split()[0] for message in caplog.messages] == ["pool_not_pinned"]
    assert 0 < pinnable_bytes(2) < host_memory_bytes() // 2


@pytest.mark.parametrize("refuses", [False, True])
def test_the_pool_is_pinned_once_or_else_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    caplog.set_level(logging.WARNING, "engine")
    runtime = Runtime(2 if refuses else 0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    pieces = host_pieces(filled_pool(1).buffer, LAYOUT)
    unpin = pin(pieces, torch.device("cpu"), pieces.nbytes)
    unpin()
    undone = [] if refuses else [("unregister", pieces.data_ptr())]
    assert runtime.calls == [("register", pieces.nbytes), *undone]
    assert [message.split()[0] for message in caplog.messages] == ["pool_not_pinned"] * refuses
