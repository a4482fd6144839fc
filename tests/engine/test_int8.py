"""With `--quantization int8`: near the model's own numbers, the same tokens in any batch, and never on a GPU."""

import runpy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.api import ChoiceTail, Prefill, Result
from engine.capacity import plan_capacity
from engine.config import EngineConfig
from engine.core import Engine, EngineSettings
from engine.errors import ModelError
from engine.llama import LlamaModel
from engine.model_config import read_model_config
from engine.model_sizes import weight_bytes
from engine.pool_memory import PoolMemory
from engine.rotation import turned
from engine.weights import weights_fingerprint
from kvferry_kernels import ops
from protocol.sampling import Sampling
from tests.support.engine_rig import tokens_of
from tests.support.model_rig import Line, ModelRig

SCRIPT = Path(__file__).parents[2] / "scripts" / "perplexity.py"
TOKENS = 1024
"""Of the shipped text: one window."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with biases everywhere, and norms that matter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=160,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("size", [1, 2, 9, 12, 64, 96, 576])
def test_a_turn_is_orthogonal_and_spreads_what_stands_out(size: int) -> None:
    matrix = turned(torch.eye(size))
    assert torch.allclose(matrix @ matrix.T, torch.eye(size), atol=1e-5)
    x, y = torch.randn(2, 5, size, generator=torch.Generator().manual_seed(1))
    assert torch.allclose((turned(x) * turned(y)).sum(-1), (x * y).sum(-1), atol=1e-3)
    assert matrix.abs().max() <= (2 / size) ** 0.5 * 1.42 or size < 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compiled", [True, False], ids=["as here", "twins"])
def test_numbers_are_near_the_models_own_and_depend_on_their_own_context_alone(
    folder: Path, dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(ops, "KERNELS", None)
    ids = torch.randint(0, 160, (70,), generator=torch.Generator().manual_seed(2)).tolist()
    exact = ModelRig(LlamaModel(folder, "float32"), num_blocks=64).step((Line(ids), 70), every_row=True)
    rig = ModelRig(LlamaModel(folder, dtype, quantization="int8"), num_blocks=64)
    assert ";int8;" in rig.model.numerics
    whole = rig.step((Line(ids), 70), every_row=True)
    assert (whole - exact).std() < 0.05 * exact.std()
    line, other = Line(ids), Line(list(range(50)))
    parts = [rig.step((other, other.computed + 5), (line, end))[1] for end in (1, 20, 33, 69, 70)]
    assert torch.equal(torch.stack(parts), whole[[0, 19, 32, 68, 69]])


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_mapped_matrices_give_the_same_bits(folder: Path, tmp_path: Path, quantization: str) -> None:
    if quantization == "none" and not ops.has_fast_linear("cpu"):
        pytest.skip("nothing is packed here")

    def logits(packed_dir: Path | None) -> torch.Tensor:
        model = LlamaModel(folder, "bfloat16", quantization=quantization, packed_dir=packed_dir)
        return ModelRig(model, num_blocks=64).step((Line(list(range(40))), 40), every_row=True)

    own = logits(None)
    for _ in range(2):
        assert torch.equal(logits(tmp_path / "packed"), own)
    assert len(list((tmp_path / "packed").glob("*.safetensors"))) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weight_bytes_are_foretold(folder: Path, dtype: str) -> None:
    config = read_model_config(folder)
    found = LlamaModel(folder, dtype, quantization="int8").weight_bytes
    assert found == weight_bytes(config, dtype, "cpu", int8=True)
    assert found < weight_bytes(config, dtype, "cpu") * 0.75
    engine = EngineConfig(model=str(folder), worker_id="", dtype=dtype, quantization="int8")
    assert plan_capacity(config, engine, "cpu", 1 << 30).weight_bytes == found


def test_no_worker_without_it_takes_such_a_workers_blocks_or_tokens_for_its_own(folder: Path) -> None:
    assert weights_fingerprint(folder, "int8") != weights_fingerprint(folder) == weights_fingerprint(folder, "none")
    plain, int8 = (LlamaModel(folder, "bfloat16", quantization=name) for name in ("none", "int8"))
    assert plain.numerics != int8.numerics
    assert plain.layout == int8.layout


def test_on_a_gpu_or_by_another_name_it_is_refused_in_one_line(folder: Path) -> None:
    config = read_model_config(folder)
    for name, device, text in (("int8", "cuda", "only on a CPU"), ("awq", "cpu", "quantization awq isn't built")):
        engine = EngineConfig(model=str(folder), worker_id="", quantization=name)
        with pytest.raises(ModelError, match=text):
            plan_capacity(config, engine, device, 1 << 30)


@pytest.mark.model
def test_greedy_tokens_are_the_same_alone_and_in_a_batch(model_dir: Path) -> None:
    model = LlamaModel(model_dir, "bfloat16", quantization="int8")
    prompts = [tuple(3 + (n * 131 + 7 * i) % 40_000 for i in range(20 + 9 * n)) for n in range(5)]
    alone = [answers(model, [prompt], budget=512)[0] for prompt in prompts]
    assert all(len(tokens) == 12 for tokens in alone)
    assert answers(model, prompts, budget=512) == alone
    assert answers(model, prompts[::-1], budget=32) == alone[::-1]


@pytest.mark.model
def test_perplexity_of_the_shipped_text_stays_near_that_of_float32(model_dir: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    ids = script["token_ids"](model_dir, script["TEXT"])
    assert len(ids) >= 2000
    exact, bf16, int8 = (
        script["perplexity"](LlamaModel(model_dir, dtype, quantization=quantization), ids[:TOKENS])
        for dtype, quantization in script["FORMATS"]
    )
    assert bf16 / exact == pytest.approx(1, abs=0.005)
    assert int8 / exact == pytest.approx(1, abs=0.01)


def answers(model: LlamaModel, prompts: list[tuple[int, ...]], budget: int) -> list[list[int]]:
    """Twelve greedy tokens of each prompt, all prompts together, ``budget`` tokens a step."""
    settings = EngineSettings(max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=512)
    engine = Engine(model, PoolMemory(model.layout, 200), settings)
    greedy = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.submit(Prefill((f"r{number}", 1), prompt, (ChoiceTail(0),), greedy))
    results: list[Result] = []
    while engine.has_work():
        results += engine.step().results
    return [tokens_of(results, (f"r{number}", 1)) for number in range(len(prompts))]
