"""Blocks of an answer as items of a response's output."""

from gateway.answer import Json
from gateway.blocks import Block, Kind

_PREFIXES = {Kind.TEXT: "msg", Kind.REASONING: "rs", Kind.CALL: "fc"}


def item_id(block: Block, response_id: str) -> str:
    """Return the id of a block's item, which follows from the response's."""
    return f"{_PREFIXES[block.kind]}_{response_id.rpartition('_')[2]}_{block.number}"


def item_of(block: Block, response_id: str, status: str, logprobs: list[Json] | None) -> Json:
    """Return a block as an item; without ``logprobs`` as it begins, empty."""
    begins = logprobs is None
    text = "" if begins else block.text
    head = {"id": item_id(block, response_id), "status": status}
    if block.kind is Kind.CALL:
        call_id = f"call_{response_id.rpartition('_')[2]}_{block.number}"
        return {**head, "type": "function_call", "call_id": call_id, "name": block.name, "arguments": text}
    content = [] if begins else [part_of(block.kind, text, logprobs or [])]
    if block.kind is Kind.REASONING:
        return {**head, "type": "reasoning", "summary": [], "content": content}
    return {**head, "type": "message", "role": "assistant", "content": content}


def part_of(kind: Kind, text: str, logprobs: list[Json]) -> Json:
    """Return the one part of an item's content."""
    if kind is Kind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
