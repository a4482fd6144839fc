"""An estimate as text for people."""

from engine.capacity import Capacity
from engine.memory import size_text
from engine.model_sizes import num_parameters
from kvferry.plan.changes import POOL_FLAG, Change, changes
from kvferry.plan.estimate import Estimate
from kvferry.plan.links import LINKS, Link
from kvferry.table import table

TENSOR_PARALLELISM = "--tensor-parallel-size is not built yet: a worker holds the whole model"


def as_text(found: Estimate) -> str:
    """Return the report: figures, requests by length, hand-overs by link, what each setting does."""
    parts = [_figures(found), _requests(found), _handovers(found), _settings(found)]
    return "\n".join(part for part in parts if part)


def _figures(found: Estimate) -> str:
    config, capacity, layout = found.source.config, found.capacity, found.capacity.layout
    parameters = f"{num_parameters(config) / 1e6:,.1f} million parameters"
    rows = [
        ("model", f"{found.source.name}: {config.family}, {parameters}, computed in {layout.dtype} on {found.device}"),
        ("stack", f"{found.num_prefill} prefill and {found.num_decode} decode workers, each with weights and a pool"),
        ("memory", _memory(found)),
        ("weights", size_text(capacity.weight_bytes)),
        ("left for KV", _left(found)),
        ("KV", f"{size_text(layout.token_bytes)} a token, {size_text(layout.block_bytes)} a block"),
        ("pool", f"{capacity.num_blocks} blocks of {layout.block_size} tokens, {capacity.num_tokens} tokens"),
        ("context", f"{capacity.max_model_len} tokens"),
    ]
    lines = [f"{name:<13}{text}\n" for name, text in rows]
    lines += [f"note: {note}\n" for note in found.notes()]
    return "".join([*lines, f"\nEach worker will say at its start:\n{capacity}\n"])


def _memory(found: Estimate) -> str:
    total, share = size_text(found.memory_bytes), found.engine.gpu_memory_utilization
    if found.device == "cuda":
        return f"{total} on each GPU, {share:g} of it for one worker: {size_text(found.share_bytes)}"
    workers = found.engine.host_workers
    return f"{total} on the host, {share:g} of it for {workers} workers: {size_text(found.share_bytes)} each"


def _left(found: Estimate) -> str:
    pool = size_text(found.capacity.pool_bytes)
    if found.engine.kv_cache_memory_bytes:
        return f"{pool}, as --kv-cache-memory-bytes says"
    return f"{size_text(found.left_bytes)}, of which the pool takes {pool}"


def _requests(found: Estimate) -> str:
    capacity = found.capacity
    rows = [
        [length, capacity.request_blocks(length), each, each * found.num_decode]
        for length in found.lengths
        for each in [capacity.concurrency(length)]
    ]
    decodes = f"{found.num_decode} decode workers" if found.num_decode > 1 else "the decode worker"
    head = ["prompt + answer", "blocks", "at once in one pool", f"in {decodes}"]
    about = f"Requests at once, by length in tokens (at most --max-num-seqs {capacity.max_num_seqs} a worker):\n"
    return about + table(head, rows)


def _handovers(found: Estimate) -> str:
    if not found.num_prefill or not found.prompt_lens:
        return ""
    capacity = found.capacity
    sizes = {length: capacity.handover_bytes(length) for length in found.prompt_lens}
    head = ["link", "GB/s", *(f"{length} tokens, {size_text(size)}" for length, size in sizes.items()), "today", "from"]
    rows = [
        [link.name, _rate(link), *(_seconds(link.seconds(size)) for size in sizes.values()), _today(link), link.origin]
        for link in LINKS
    ]
    return "A hand-over of a prompt that the decode worker doesn't know, alone on the link:\n" + table(head, rows)


def _rate(link: Link) -> str:
    return f"{link.bytes_per_s / 1e9:.3g}"


def _today(link: Link) -> str:
    if link.seconds_today(1) is None:
        return "not built"
    return "yes" if link.seconds_today(1) == link.seconds(1) else "as on loopback"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _settings(found: Estimate) -> str:
    usual = found.capacity.usual_len
    head = ["if you change", "weights", "KV a token", "pool", "context", f"of {usual}", "of the context"]
    rows: list[list[object]] = [["nothing", *_row(found.capacity, usual)]]
    said = []
    for change in changes(found):
        name = _name(change)
        if change.capacity is None:
            said.append(f"{name}: {change.refusal}\n")
        else:
            rows.append([name, *_row(change.capacity, usual)])
    about = "What each setting does, for one worker (the last columns are requests at once of so many tokens):\n"
    return about + table(head, rows) + "".join([*said, f"{TENSOR_PARALLELISM}\n"])


def _name(change: Change) -> str:
    values = [change.before, change.after]
    if change.flag == POOL_FLAG:
        values = [size_text(int(value)) for value in values]
    return f"{change.flag} {' to '.join(values)}" + ("" if change.is_built else " (not built yet)")


def _row(capacity: Capacity, usual: int) -> list[object]:
    fits = capacity.max_model_len >= usual
    return [
        size_text(capacity.weight_bytes),
        size_text(capacity.layout.token_bytes),
        f"{capacity.num_tokens} tokens",
        capacity.max_model_len,
        str(capacity.concurrency(usual)) if fits else "too long",
        capacity.concurrency(capacity.max_model_len),
    ]
