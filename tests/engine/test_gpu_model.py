"""The path of a GPU, its kernels in Triton's interpreter: what the CPU's path computes, and the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

from engine.api import ChoiceTail, Command, Computed, NewTokens, Prefill, Report, Shutdown
from engine.batch import Batch
from engine.capacity import plan_capacity
from engine.config import EngineConfig
from engine.decode_graphs import Compute, Recording, Repeating
from engine.errors import ModelError
from engine.llama import LlamaModel
from engine.loop import run_loop
from engine.model_config import read_model_config
from engine.process import load_engine
from engine.staging import Staging
from engine.turns import NoTurns
from tests.engine.test_model_shapes import FAMILIES, save_tiny
from tests.support.engine_rig import GREEDY, SEEDED, HandOver, Rig, generate, only
from tests.support.model_rig import Line, ModelRig

IDS = torch.randint(0, 160, (21,), generator=torch.Generator().manual_seed(1)).tolist()


def logits_of(folder: Path, dtype: str, device: str) -> torch.Tensor:
    rig = ModelRig(LlamaModel(folder, dtype, device), num_blocks=16)
    return rig.step((Line(IDS), len(IDS)), every_row=True)


@pytest.mark.parametrize("name", ["llama, tied, biases", "llama, head_dim 12", "qwen3"])
def test_logits_are_those_of_the_cpu(tmp_path: Path, name: str) -> None:
    family, changes = FAMILIES[name]
    save_tiny(tmp_path, family, **changes)
    expected = logits_of(tmp_path, "float32", "cpu")
    found = logits_of(tmp_path, "float32", "interpreter")
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.std()), rtol=1e-5)


def test_numbers_of_16_bits_are_as_near_to_float32_as_on_the_cpu(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3", head_dim=32)
    exact = logits_of(tmp_path, "float32", "cpu")
    cpu = (logits_of(tmp_path, "bfloat16", "cpu") - exact).std()
    assert (logits_of(tmp_path, "bfloat16", "interpreter") - exact).std() < 1.3 * cpu
    assert (logits_of(tmp_path, "float16", "interpreter") - exact).std() < 0.3 * cpu


def test_greedy_tokens_are_those_of_the_cpu_in_one_batch_of_prompts_and_decodes(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    cpu = ModelRig(LlamaModel(tmp_path, "float32"), num_blocks=32)
    gpu = ModelRig(LlamaModel(tmp_path, "float32", "interpreter"), num_blocks=32)
    first, second = list(range(3, 22)), list(range(70, 80))
    expected = [cpu.generate(ids, 6)[0] for ids in (first, second)]
    line, logits = gpu.prefill(first, chunk=8)
    late = Line(list(second))
    found: list[list[int]] = [[int(logits.argmax())], []]
    for end in (4, 10):  # a prompt in two chunks, beside a sequence that decodes
        line.ids.append(found[0][-1])
        rows = gpu.step((line, len(line.ids)), (late, end))
        found[0].append(int(rows[0].argmax()))
    found[1].append(int(rows[1].argmax()))
    while len(found[1]) < 6:
        for each, tokens in zip((line, late), found, strict=True):
            each.ids.append(tokens[-1])
        rows = gpu.step((line, len(line.ids)), (late, len(late.ids)))
        for row, tokens in zip(rows, found, strict=True):
            tokens.append(int(row.argmax()))
    assert [tokens[:6] for tokens in found] == expected


def test_bits_of_a_sequence_do_not_depend_on_who_is_beside_it(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    rig = ModelRig(LlamaModel(tmp_path, "float32", "interpreter"), num_blocks=32)
    (line, _), (beside, _) = rig.prefill(list(range(3, 22))), rig.prefill(list(range(10)))
    line.ids.append(7)
    alone = rig.step((line, 20))[0]
    line.computed = 19
    beside.ids += [9, 11, 13]
    assert torch.equal(rig.step((beside, 13), (line, 20))[1], alone)


def test_what_only_a_cpu_has_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    with pytest.raises(ModelError, match="int8 isn't built on interpreter"):
        LlamaModel(tmp_path, "float32", "interpreter", quantization="int8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_bits_depend_neither_on_chunks_nor_on_the_batch(tmp_path: Path, dtype: str) -> None:
    save_tiny(tmp_path, "Llama", attention_bias=True)
    rig = ModelRig(LlamaModel(tmp_path, dtype, "interpreter", batch_invariant=True), num_blocks=32)
    whole = rig.step((Line(IDS), len(IDS)), every_row=True)
    line, other = Line(IDS), Line([9] * 12)
    parts = [rig.step((other, other.computed + 3), (line, end))[1] for end in (1, 2, 17, 21)]
    assert torch.equal(torch.stack(parts), whole[[0, 1, 16, 20]])
    near = logits_of(tmp_path, "float32", "cpu")
    assert (whole - near).std() < (1e-4 if dtype == "float32" else 0.05) * near.std()


def test_decodes_that_are_recorded_have_the_bits_of_those_that_are_not(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    model = LlamaModel(tmp_path, "float32", "interpreter")
    eager, recorded = ModelRig(model, num_blocks=32), ModelRig(model, num_blocks=32)
    sizes: list[int] = []

    def record(compute: Compute, batch: Batch) -> tuple[Recording, torch.Tensor]:
        sizes.append(len(batch.query_lens))
        return Repeating.record(compute, batch)

    prompts = [list(range(3, 22)), list(range(70, 75)), [9] * 16]
    lines = [[rig.prefill(ids)[0] for ids in prompts] for rig in (eager, recorded)]
    for num_seqs in (3, 1, 3):
        for line in [*lines[0][:num_seqs], *lines[1][:num_seqs]]:
            line.ids.append(len(line.ids))
        expected = eager.step(*((line, len(line.ids)) for line in lines[0][:num_seqs]))
        model.record_with(record)
        found = recorded.step(*((line, len(line.ids)) for line in lines[1][:num_seqs]))
        model.record_with(None)
        assert torch.equal(found, expected)
    assert sizes == [4, 1, 4]


def test_a_recorded_step_writes_nothing_into_blocks_of_others(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    model = LlamaModel(tmp_path, "float32", "interpreter")
    rig = ModelRig(model, num_blocks=8)
    line, _ = rig.prefill(list(range(3, 20)))
    line.ids.append(5)
    before = [(layer.k.clone(), layer.v.clone()) for layer in rig.cache]
    model.record_with(Repeating.record)
    rig.step((line, 18))
    block, offset = line.table[1], 17 % 16
    for layer, (k, v) in zip(rig.cache, before, strict=True):
        k[block, :, offset], v[block, :, offset] = layer.k[block, :, offset], layer.v[block, :, offset]
        assert torch.equal(layer.k, k)
        assert torch.equal(layer.v, v)


def test_a_hand_over_between_two_devices_gives_the_tokens_of_one_cpu(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    prompt_ids, choices = tuple(range(3, 40)), (ChoiceTail(0), ChoiceTail(1))
    greedy = replace(GREEDY, max_tokens=6)
    cpu = LlamaModel(tmp_path, "float32")
    expected = generate(Rig(model=cpu), prompt_ids, greedy, choices=choices)
    gpu = LlamaModel(tmp_path, "float32", "interpreter")
    apart = [Rig(model=gpu, staging=lambda memory: Staging(memory, apart=True)) for _ in range(2)]
    assert HandOver(*apart, prompt_ids, greedy, choices).whole() == expected


def test_blocks_of_a_cpu_and_of_a_gpu_are_told_apart(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    cpu, gpu = (LlamaModel(tmp_path, "float32", device).layout for device in ("cpu", "interpreter"))
    assert cpu.block_bytes == gpu.block_bytes
    assert cpu.fingerprint != gpu.fingerprint


def made_by(folder: Path, device: str) -> list[Report]:
    """What a loaded engine makes of a greedy request, a drawn one, one with log probabilities and a hand-over."""
    config = EngineConfig(str(folder), "", dtype="float32", device=device, num_threads=1, kv_cache_memory_bytes=1 << 20)
    few = replace(SEEDED, max_tokens=5)
    wants = (replace(GREEDY, max_tokens=5), few, replace(few, logprobs=1, presence_penalty=0.5))
    commands: list[Command] = [
        Prefill((str(i), 0), tuple(range(3, 40 + i)), (ChoiceTail(0), ChoiceTail(1)), each)
        for i, each in enumerate(wants)
    ]
    commands.append(Prefill(("h", 0), tuple(range(50, 90)), (ChoiceTail(0),), few, hand_over=True))
    reports: list[Report] = []

    def next_command(seconds: float | None) -> Command | None:
        return commands.pop(0) if commands else Shutdown() if seconds is None else None

    run_loop(load_engine(config, NoTurns()).engine, next_command, reports.append)
    return reports


def test_a_loaded_engine_makes_the_tokens_of_a_cpus(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    made: list[list[tuple[object, ...]]] = []
    for device in ("cpu", "interpreter"):
        results = [result for report in made_by(tmp_path, device) for result in report.results]
        made.append(sorted((*r.key, r.choice, r.first_index, r.token_ids) for r in only(results, NewTokens)))
        assert [r.num_tokens for r in only(results, Computed) if r.last] == [40]
    assert len(made[0]) == 31
    assert made[1] == made[0]


def test_an_engine_is_started_with_the_kernels_of_a_gpu(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Llama")
    config = EngineConfig(str(tmp_path), "", device="interpreter", num_threads=1, kv_cache_memory_bytes=1 << 20)
    loaded = load_engine(config, NoTurns())
    assert loaded.started.ready.numerics.startswith(f"triton-{triton.__version__}-interpreted;")
    assert loaded.pool.layout == plan_capacity(read_model_config(tmp_path), config, "interpreter").layout
