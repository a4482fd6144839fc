"""What each setting does: the same arithmetic again with one of them changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.capacity import Capacity, plan_capacity
from engine.config import AUTO_LEN, EngineConfig
from engine.errors import ModelError
from engine.layout import BLOCK_SIZE
from engine.model_sizes import INT8, NO_QUANTIZATION, resolve_dtype
from kvferry.plan.estimate import Estimate

POOL_FLAG = "--kv-cache-memory-bytes"
"""Its values are bytes, which people read better in larger units."""

LESS, MORE = 0.2, 0.05
"""Steps of the memory share, down and up."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting changed ``before`` to ``after``; ``capacity`` is None where ``refusal`` says why it can't be."""

    flag: str
    before: str
    after: str
    capacity: Capacity | None
    refusal: str = ""
    is_built: bool = True


def changes(now: Estimate) -> list[Change]:
    """Each setting that decides what fits, changed one step."""
    tried = [_tried(now, *each) for each in _settings(now)]
    other = 2 * BLOCK_SIZE
    tried.append(_tried(now, "--block-size", str(BLOCK_SIZE), str(other), now.engine, block_size=other))
    return tried


def _settings(now: Estimate) -> Iterator[tuple[str, str, str, EngineConfig]]:
    """Flag, value before and after, and all settings after."""
    engine, capacity = now.engine, now.capacity
    share = engine.gpu_memory_utilization
    for other in (round(share - LESS, 2), round(min(share + MORE, 1.0), 2)):
        if other > 0 and other != share:
            changed = replace(engine, gpu_memory_utilization=other)
            yield "--gpu-memory-utilization", f"{share:g}", f"{other:g}", changed
    pool = capacity.pool_bytes
    other_pool = 2 * pool if capacity.weight_bytes + 2 * pool <= now.part_bytes else pool // 2
    yield POOL_FLAG, str(pool), str(other_pool), replace(engine, kv_cache_memory_bytes=other_pool)
    longest = capacity.max_model_len
    if longest > 1:
        yield "--max-model-len", str(longest), str(longest // 2), replace(engine, max_model_len=longest // 2)
    if engine.max_model_len != AUTO_LEN:
        yield "--max-model-len", str(longest), "auto", replace(engine, max_model_len=AUTO_LEN)
    else:
        count = engine.auto_concurrency
        yield "--auto-concurrency", str(count), str(2 * count), replace(engine, auto_concurrency=2 * count)
    seqs = engine.max_num_seqs
    for other_seqs in (seqs // 2, seqs * 2):
        if other_seqs:
            yield "--max-num-seqs", str(seqs), str(other_seqs), replace(engine, max_num_seqs=other_seqs)
    dtype = resolve_dtype(engine.dtype, now.source.config, now.device)
    other_dtype = "bfloat16" if dtype == "float32" else "float32"
    yield "--dtype", dtype, other_dtype, replace(engine, dtype=other_dtype)
    quantized = engine.quantization
    turned = NO_QUANTIZATION if quantized == INT8 else INT8
    yield "--quantization", quantized, turned, replace(engine, quantization=turned)
    if now.device == "cpu":
        workers = engine.host_workers
        yield "--host-workers", str(workers), str(workers + 1), replace(engine, host_workers=workers + 1)


def _tried(
    now: Estimate, flag: str, before: str, after: str, engine: EngineConfig, block_size: int = BLOCK_SIZE
) -> Change:
    is_built = block_size == BLOCK_SIZE
    try:
        capacity = plan_capacity(now.source.config, engine, now.device, now.memory_bytes, block_size)
    except ModelError as error:
        return Change(flag, before, after, None, str(error), is_built)
    return Change(flag, before, after, capacity, is_built=is_built)
