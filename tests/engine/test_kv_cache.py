"""The cache is a set of views in the layout's order."""

import pytest
import torch

from engine.kv_cache import cache_bytes, copy_block, map_cache
from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory

TWO_GROUPS = KVLayout((CacheGroup((0, 2), 2, 8), CacheGroup((1,), 1, 4, window=32)), "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_views_have_the_layouts_shapes_and_share_the_buffer(dtype: str) -> None:
    layout = KVLayout(TWO_GROUPS.groups, dtype)
    buffer = bytearray(cache_bytes(layout, 5))
    cache = map_cache(buffer, layout, 5)
    k_shapes, v_shapes = [(5, 2, 8, 16), (5, 1, 4, 16), (5, 2, 8, 16)], [(5, 2, 16, 8), (5, 1, 16, 4), (5, 2, 16, 8)]
    if dtype != "float32":
        k_shapes, v_shapes = [(*k[:2], k[2] // 2, 16, 2) for k in k_shapes], [(*v[:2], 8, v[3], 2) for v in v_shapes]
    assert [tuple(layer.k.shape) for layer in cache] == k_shapes
    assert [tuple(layer.v.shape) for layer in cache] == v_shapes
    assert all(part.is_contiguous() for layer in cache for part in (layer.k, layer.v))
    for number, layer in enumerate(cache):
        layer.k.fill_(number + 1)
        layer.v.fill_(-number - 1)
    flat = torch.frombuffer(buffer, dtype=getattr(torch, dtype))
    half, small = 5 * 2 * 8 * 16, 5 * 4 * 16
    expected = [(1, half), (-1, half), (3, half), (-3, half), (2, small), (-2, small)]
    assert flat.tolist() == [value for value, count in expected for _ in range(count)]


def test_tensor_views_and_byte_views_of_a_pool_are_the_same_memory() -> None:
    memory = PoolMemory(TWO_GROUPS, 3)
    cache = map_cache(memory.buffer, TWO_GROUPS, 3)
    memory.layers(0)[1].v[2, 1, :2] = (0x80, 0x3F)
    memory.layers(1)[0].k[0, 0, :2] = (0x00, 0xC0)
    assert cache[2].v[2, 1, 0, 0, 0] == 1.0
    assert cache[1].k[0, 0, 0, 0, 0] == -2.0
    memory.close()


def test_a_block_is_copied_in_every_layer() -> None:
    cache = map_cache(bytearray(cache_bytes(TWO_GROUPS, 3)), TWO_GROUPS, 3)
    for layer in cache:
        layer.k[1].fill_(5)
        layer.v[1].fill_(6)
    copy_block(cache, 1, 2)
    for layer in cache:
        assert (layer.k[2] == 5).all()
        assert (layer.v[2] == 6).all()
        assert (layer.k[0] == 0).all()


def test_a_buffer_that_is_too_short_is_refused() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        map_cache(bytearray(100), TWO_GROUPS, 3)
