"""`kvferry plan`: figures by hand for known shapes, one-line refusals, and nothing loaded."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model_config import ModelConfig, read_model_config
from kvferry.errors import ModelError
from kvferry.plan.gguf_header import read_gguf_header
from kvferry.plan.links import LINKS
from kvferry.plan.settings import CUDA_DEVICE, read_question
from kvferry.plan.source import read_source

MIB, GIB = 1 << 20, 1 << 30
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
Told = Callable[..., Any]


@pytest.fixture
def llama_8b(tmp_path: Path) -> Path:
    """Config alone, as somebody has it who decides whether to download the rest."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Run `kvferry plan`; its text, or with --json its figures, or with ``refused`` its one line."""
    for name in [key for key in os.environ if key.startswith("KVFERRY_") and key != "KVFERRY_CACHE"]:
        monkeypatch.delenv(name)

    def run(*argv: object, refused: bool = False) -> Any:
        from kvferry.cli import main

        code = main(["plan", *map(str, argv)])
        shown = capsys.readouterr()
        assert code == (2 if refused else 0), shown.err
        if refused:
            assert shown.out == ""
            (line,) = shown.err.splitlines()
            return line
        return json.loads(shown.out) if "--json" in argv else shown.out

    return run


def test_a_gpu_of_24_gb_holds_llama_8b_as_worked_out_by_hand(plan: Told, llama_8b: Path) -> None:
    asked = ("--model", llama_8b, "--memory", "24GB", "--device", "cuda", "--prompt-len", "1000", "--json")
    found = plan(*asked)
    worker = found["worker"]
    assert worker["weight_bytes"] == 16_060_522_496
    assert (worker["kv_token_bytes"], worker["kv_block_bytes"]) == (128 << 10, 2 * MIB)
    assert (worker["num_blocks"], worker["num_tokens"], worker["max_model_len"]) == (2641, 42256, 8192)
    at_once = {row["context_len"]: row["at_once"] for row in found["requests"]}
    assert at_once == {512: 64, 1024: 40, 2048: 20, 4096: 10, 8192: 5}
    (handover,) = found["handovers"]
    assert handover["bytes"] == 63 * 2 * MIB
    assert handover["seconds"]["NATS on loopback"] == pytest.approx(0.264, rel=0.01)
    assert handover["seconds"]["10 Gbit/s network"] == pytest.approx(0.1057, rel=0.01)
    assert handover["seconds_today"]["10 Gbit/s network"] == handover["seconds_today"]["NATS on loopback"]
    assert handover["seconds_today"]["1 Gbit/s network"] == handover["seconds"]["1 Gbit/s network"]
    assert handover["seconds_today"]["memory of one host"] == handover["seconds"]["memory of one host"]
    assert handover["seconds_today"]["NVLink 4"] is None


def test_each_setting_is_changed_and_computed_again(plan: Told, llama_8b: Path) -> None:
    found = plan("--model", llama_8b, "--memory", "24GB", "--device", "cuda", "--json")
    now = found["worker"]
    changed = {(each["flag"], each["after"]): each for each in found["changes"]}
    more = changed["--gpu-memory-utilization", "0.95"]["worker"]
    assert more["num_blocks"] == (int(24e9 * 0.95) - 16_060_522_496) // (2 * MIB)
    assert changed["--max-model-len", "4096"]["worker"]["max_model_len"] == 4096
    assert changed["--max-num-seqs", "128"]["worker"]["max_num_seqs"] == 128
    half = changed["--kv-cache-memory-bytes", str(now["pool_bytes"] // 2)]["worker"]
    assert half["num_blocks"] == now["num_blocks"] // 2
    assert "fill the worker's share" in changed["--dtype", "float32"]["refusal"]
    blocks_of_32 = changed["--block-size", "32"]
    assert not blocks_of_32["built"]
    assert blocks_of_32["worker"]["kv_block_bytes"] == 4 * MIB
    assert "only on a CPU" in changed["--quantization", "int8"]["refusal"]
    assert not any("tensor" in flag for flag, _ in changed)


def test_a_pool_is_doubled_where_memory_has_room_for_it(plan: Told) -> None:
    text = plan("--device", "cpu", "--memory", "24GB")
    line = next(line for line in text.splitlines() if line.startswith("--kv-cache-memory-bytes"))
    assert line.startswith("--kv-cache-memory-bytes 2.0 GiB to 4.0 GiB ")
    assert "186400 tokens" in line


def test_the_report_is_for_people(plan: Told, llama_8b: Path) -> None:
    text = plan("--model", llama_8b, "--memory", "24GB", "--device", "cuda")
    assert "weights      15.0 GiB" in text
    assert "KV           128.0 KiB a token, 2.0 MiB a block" in text
    assert "note: the folder has no weights: sizes are computed from config.json alone" in text
    assert "for one GPU together say --gpu-memory-utilization 0.45" in text
    assert "--tensor-parallel-size is not built yet" in text
    assert "--quantization none to int8: --quantization int8 isn't built on cuda" in text
    assert "(not built yet)" in next(line for line in text.splitlines() if line.startswith("--block-size"))
    assert max(len(line) for line in text.splitlines() if str(llama_8b) not in line) < 240


def test_on_a_cpu_the_hosts_memory_is_divided_as_up_divides_it(plan: Told) -> None:
    for flags, workers in (
        ((), 2),
        (("--prefill", 3, "--decode", 2), 5),
        (("--role", "both", "--decode", 3), 3),
        (("--max-workers", 8), 8),
        (("--host-workers", 4), 4),
    ):
        found = plan("--device", "cpu", "--memory", "8GiB", *flags, "--json")
        share = int(8 * GIB // workers * 0.9)
        assert (found["host_workers"], found["share_bytes"]) == (workers, share)
        room = min(share - 325_653_120, 2 * GIB)
        assert found["worker"]["num_blocks"] == room // 368_640


def test_both_hands_nothing_over(plan: Told) -> None:
    assert plan("--role", "both", "--json")["handovers"] == []
    assert "hand-over" not in plan("--role", "both")


def test_auto_picks_the_context_of_which_so_many_fit(plan: Told) -> None:
    sized = ("--device", "cpu", "--memory", "8GiB", "--kv-cache-memory-bytes", "64MiB", "--max-model-len", "auto")
    found = plan(*sized, "--json")
    assert found["worker"]["max_model_len"] == (182 // 4 - 1) * 16
    assert found["requests"][-1] == {"context_len": 704, "num_blocks": 45, "at_once": 4}
    assert plan(*sized, "--auto-concurrency", 2, "--json")["worker"]["max_model_len"] == 90 * 16
    assert plan(*sized, "--auto-concurrency", 1, "--prompt-len", 100, "--prompt-len", 200, "--json")["handovers"]


def test_a_pool_beyond_the_share_is_taken_and_said(plan: Told) -> None:
    text = plan("--device", "cpu", "--memory", "1GiB", "--kv-cache-memory-bytes", "1GiB")
    assert "weights and pool are 873.5 MiB more than the worker's share of 460.8 MiB" in text
    assert "as --kv-cache-memory-bytes says" in text


def test_a_shortened_context_is_said(plan: Told) -> None:
    text = plan("--device", "cpu", "--memory", "8GiB", "--kv-cache-memory-bytes", "64MiB")
    assert "shortened from 8192 to 2896 tokens: the pool has 182 blocks, one such request wants 513" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--memory", "1", "--device", "cpu"], "memory are needed"),
        (["--memory", "8GB", "--device", "cuda"], "more than 16.6 GiB of memory are needed"),
        (["--memory", "17GB", "--device", "cuda"], "725.3 MiB are missing: raise --gpu-memory-utilization to 0.95"),
        (["--memory", "64GB", "--device", "cpu", "--prefill", "3"], "run at most 3 of the host's 4 workers"),
        (["--memory", "24GB", "--device", "cuda", "--dtype", "fp32"], "halve the weights with --dtype bfloat16"),
        (["--memory", "24GB", "--device", "cpu", "--dtype", "fp16"], "dtype float16 isn't built on cpu"),
        (["--memory", "many"], "--memory: 'many' is not a size"),
        (["--memory", "24GB", "--device", "cuda", "--prompt-len", "8192"], "have to fit into 8192 tokens of context"),
        (["--prompt-len", "1,x"], "--prompt-len: '1,x' is not a whole number"),
        (["--max-model-len", "9000", "--memory", "24GB", "--device", "cuda"], "9000 is not in 1 to 8192"),
        (["--max-workers", "1"], "--max-workers 1 is less than the 2 workers to start"),
        (["--role", "both", "--prefill", "2"], "--prefill has no meaning with --role both"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size is not built yet"),
        (["--port", "80"], "unknown flag --port"),
    ],
)
def test_what_cant_be_is_refused_in_one_line(plan: Told, llama_8b: Path, argv: list[str], says: str) -> None:
    line = plan("--model", llama_8b, *argv, refused=True)
    assert line.startswith("kvferry plan: ")
    assert says in line


def test_a_model_that_isnt_here_is_refused_and_not_downloaded(plan: Told, tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), "nobody/has-this-model", "a/b/c"):
        assert "no such folder, and not in the hub's cache" in plan("--model", name, refused=True)
    (tmp_path / "file").write_text("")
    assert "not a folder" in plan("--model", tmp_path / "file", refused=True)
    assert "config.json does not exist" in plan("--model", tmp_path, refused=True)


def test_weights_that_arent_what_the_config_describes_are_named(llama_8b: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (llama_8b / "tokenizer.json").write_text("{}")
    (llama_8b / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    source = read_source(str(llama_8b))
    assert source.file_parameters == 2
    assert source.notes == ("config.json describes 8030261248 parameters, the folder's files hold 2",)
    (llama_8b / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelError, match="truncated"):
        read_source(str(llama_8b))


def test_auto_device_is_cuda_where_a_driver_is() -> None:
    assert read_question([], {}).device == ("cuda" if CUDA_DEVICE.exists() else "cpu")
    assert read_question(["--device", "cuda"], {}).device == "cuda"


@pytest.mark.model
def test_the_bundled_file_says_what_its_converted_folder_says(model_dir: Path) -> None:
    def sizes(config: ModelConfig) -> dict[str, object]:
        return {name: getattr(config, name) for name in ModelConfig.__dataclass_fields__ if name != "eos_ids"}

    bundled, converted = read_source(None), read_source(str(model_dir))
    assert sizes(bundled.config) == sizes(read_model_config(model_dir))
    assert bundled.file_parameters == converted.file_parameters == 134_515_008
    assert bundled.notes == converted.notes == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "begins otherwise"),
        (b"GGUF\x01\0\0\0", "version 1 isn't known"),
        (b"GGUF\x03\0\0\0" + struct.pack("<QQ", 1 << 40, 0), "promises 1099511627776 entries"),
        (b"GGUF\x03\0\0\0" + struct.pack("<QQQ", 0, 1, 1 << 30), "promises a text of"),
        (b"GGUF\x03\0\0\0" + struct.pack("<QQQ", 0, 1, 1) + b"a\x63\0\0\0", "unknown type 99"),
        (b"GGUF\x03\0\0\0" + struct.pack("<QQ", 0, 1), "not readable"),
    ],
)
def test_a_damaged_gguf_header_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "file.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=says) as caught:
        read_gguf_header(tmp_path / "file.gguf")
    assert "\n" not in str(caught.value)


def test_links_have_the_speeds_of_their_standards() -> None:
    rates = {link.name: link.bytes_per_s / 1e9 for link in LINKS}
    assert rates["NATS on loopback"] == 0.5
    assert rates["memory of one host"] == 1
    assert [rates[f"{n} Gbit/s network"] for n in (1, 10, 25, 100, 200)] == [0.125, 1.25, 3.125, 12.5, 25.0]
    assert rates["PCIe 4.0 x16"] == pytest.approx(31.5, rel=0.001)
    assert rates["PCIe 5.0 x16"] == pytest.approx(63.0, rel=0.001)
    assert rates["NVLink 4"] == 450


def test_nothing_is_loaded(environ: dict[str, str]) -> None:
    code = (
        "import sys\nfrom kvferry.cli import main\n"
        "assert main(['plan', '--device', 'cpu', '--memory', '8GB']) == 0\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert not Path(environ["KVFERRY_CACHE"]).exists()
