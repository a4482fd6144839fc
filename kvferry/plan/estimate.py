"""The answer: one worker's capacity under given settings, and what is worth knowing beside it."""

from dataclasses import dataclass

from engine.capacity import Capacity, plan_capacity
from engine.config import EngineConfig
from engine.errors import ModelError as EngineModelError
from engine.memory import memory_of, part_of_worker, size_text
from engine.model_sizes import INT8, head_is_copy, int8_bytes
from kvferry.errors import ModelError, UsageError
from kvferry.plan.settings import Question
from kvferry.plan.source import Source

DEFAULT_PROMPTS = (512, 2048)
SHORTEST = 512


@dataclass(frozen=True, slots=True)
class Estimate:
    """``memory_bytes`` is the host's or one GPU's."""

    source: Source
    engine: EngineConfig
    device: str
    memory_bytes: int
    capacity: Capacity
    num_prefill: int
    num_decode: int
    prompt_lens: tuple[int, ...]

    @property
    def part_bytes(self) -> int:
        """One worker's part of the memory."""
        return part_of_worker(self.memory_bytes, self.engine.host_workers, self.device)

    @property
    def share_bytes(self) -> int:
        """What a worker may use of its part."""
        return int(self.part_bytes * self.engine.gpu_memory_utilization)

    @property
    def left_bytes(self) -> int:
        """What the weights leave of the share; below 0 only where the pool's size was given."""
        return self.share_bytes - self.capacity.weight_bytes

    @property
    def lengths(self) -> list[int]:
        """Context lengths to count requests of: 512 and its doubles, and the longest."""
        longest, lengths = self.capacity.max_model_len, []
        length = SHORTEST
        while length < longest:
            lengths.append(length)
            length *= 2
        return [*lengths, longest]

    def notes(self) -> list[str]:
        """Sentences about what isn't as one might think."""
        return [*self.source.notes, *self._notes_on_memory(), *self._notes_on_context()]

    def _notes_on_memory(self) -> list[str]:
        notes, capacity, engine = [], self.capacity, self.engine
        config = self.source.config
        if head_is_copy(config, self.device):
            once = config.vocab_size * config.hidden_size * capacity.layout.item_bytes
            each = f"{size_text(once)} each"
            if engine.quantization == INT8:
                head = int8_bytes(config.vocab_size, config.hidden_size)
                each = f"{size_text(once)}, and {size_text(head)} as {INT8}"
            notes.append(f"the tied embedding is in memory twice on a CPU, {each}")
        explicit, unused = engine.kv_cache_memory_bytes > 0, self.left_bytes - capacity.pool_bytes
        if explicit and unused < 0:
            notes.append(
                f"--kv-cache-memory-bytes is taken as it is: weights and pool are {size_text(-unused)} more than the "
                f"worker's share of {size_text(self.share_bytes)}"
            )
        elif not explicit and unused >= capacity.layout.block_bytes:
            notes.append(
                f"a pool on a CPU takes 2 GiB unless told otherwise: {size_text(unused)} of the share stay unused, "
                "--kv-cache-memory-bytes can use them"
            )
        workers = self.num_prefill + self.num_decode
        if self.device == "cuda" and workers > 1 and not explicit:
            notes.append(
                f"each of the {workers} workers takes its share of a GPU of its own; for one GPU together say "
                f"--gpu-memory-utilization {int(engine.gpu_memory_utilization * 100 / workers) / 100:g}"
            )
        return notes

    def _notes_on_context(self) -> list[str]:
        capacity = self.capacity
        if not capacity.shortened_from:
            return []
        return [
            f"the context is shortened from {capacity.shortened_from} to {capacity.max_model_len} tokens: the pool "
            f"has {capacity.num_blocks} blocks, one such request wants "
            f"{capacity.request_blocks(capacity.shortened_from)}"
        ]


def estimate(question: Question, source: Source, engine: EngineConfig) -> Estimate:
    """Work out what is asked. Raises `UsageError` if it can't be."""
    memory_bytes = question.own.memory or memory_of(question.device)
    try:
        capacity = plan_capacity(source.config, engine, question.device, memory_bytes)
    except EngineModelError as error:
        raise ModelError(f"model {source.name}: {error}") from None
    prompts = question.own.prompt_len or tuple(n for n in DEFAULT_PROMPTS if n < capacity.max_model_len)
    too_long = [length for length in prompts if length >= capacity.max_model_len]
    if too_long:
        longest = capacity.max_model_len
        raise UsageError(f"--prompt-len {too_long[0]}: prompt and answer have to fit into {longest} tokens of context")
    return Estimate(
        source,
        engine,
        question.device,
        memory_bytes,
        capacity,
        question.num_prefill,
        question.num_decode,
        prompts,
    )
