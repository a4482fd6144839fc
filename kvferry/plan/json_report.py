"""An estimate as JSON for programs: sizes in bytes, times in seconds."""

import json
from dataclasses import asdict

from engine.capacity import Capacity
from engine.model_sizes import num_parameters
from kvferry.plan.changes import Change, changes
from kvferry.plan.estimate import Estimate
from kvferry.plan.links import LINKS


def as_json(found: Estimate) -> str:
    """Return all figures on one line."""
    capacity, engine = found.capacity, found.engine
    answer = {
        "model": found.source.name,
        "num_parameters": num_parameters(found.source.config),
        "device": found.device,
        "memory_bytes": found.memory_bytes,
        "share_bytes": found.share_bytes,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "host_workers": engine.host_workers,
        "num_prefill": found.num_prefill,
        "num_decode": found.num_decode,
        "worker": _as_dict(capacity),
        "requests": [
            {
                "context_len": length,
                "num_blocks": capacity.request_blocks(length),
                "at_once": capacity.concurrency(length),
            }
            for length in found.lengths
        ],
        "handovers": [_handover(capacity, length) for length in found.prompt_lens if found.num_prefill],
        "links": [{**asdict(link), "built": link.seconds_today(1) is not None} for link in LINKS],
        "changes": [_change(change) for change in changes(found)],
        "notes": found.notes(),
    }
    return json.dumps(answer) + "\n"


def _as_dict(capacity: Capacity) -> dict[str, object]:
    return {
        "weight_bytes": capacity.weight_bytes,
        "dtype": capacity.layout.dtype,
        "kv_token_bytes": capacity.layout.token_bytes,
        "kv_block_bytes": capacity.layout.block_bytes,
        "block_size": capacity.layout.block_size,
        "num_blocks": capacity.num_blocks,
        "num_tokens": capacity.num_tokens,
        "pool_bytes": capacity.pool_bytes,
        "max_model_len": capacity.max_model_len,
        "max_num_seqs": capacity.max_num_seqs,
    }


def _handover(capacity: Capacity, prompt_len: int) -> dict[str, object]:
    num_bytes = capacity.handover_bytes(prompt_len)
    return {
        "prompt_len": prompt_len,
        "bytes": num_bytes,
        "seconds": {link.name: link.seconds(num_bytes) for link in LINKS},
        "seconds_today": {link.name: link.seconds_today(num_bytes) for link in LINKS},
    }


def _change(change: Change) -> dict[str, object]:
    return {
        "flag": change.flag,
        "before": change.before,
        "after": change.after,
        "built": change.is_built,
        "refusal": change.refusal,
        "worker": _as_dict(change.capacity) if change.capacity is not None else None,
    }
