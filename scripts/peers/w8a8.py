"""Write an int8 copy of a Hugging Face model for vLLM: `python w8a8.py SOURCE TARGET`.

The format is compressed-tensors' ``int-quantized``: a ``weight`` in int8 beside a ``weight_scale``, and a scheme in
``quantization_config``. Weights of linear layers are symmetric, one scale an output channel; activations are quantized
by the server, one scale a token. Embedding and head stay as they are.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LINEAR = "_proj.weight"
LARGEST = 127
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def main() -> None:
    """Convert; the target appears whole or not at all."""
    source, target = (Path(word) for word in sys.argv[1:])
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            save_file(quantized(load_file(file)), part / file.name, metadata={"format": "pt"})
        elif file.is_file():
            shutil.copy(file, part / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**config, "quantization_config": SCHEME}, indent=2)
    (part / "config.json").write_text(text, encoding="utf-8")
    part.replace(target)


def quantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with each linear weight ``[outputs, inputs]`` as int8 and float32 scales ``[outputs, 1]``."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith(LINEAR):
            found[name] = tensor
            continue
        weight = tensor.float()
        scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        found[name] = (weight / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        found[f"{name}_scale"] = scale
    return found


if __name__ == "__main__":
    main()
