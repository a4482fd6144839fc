"""Kernels run on a card where there is one, else in Triton's interpreter: see tests/conftest.py."""

import pytest
import torch
import triton


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run."""
    if torch.cuda.is_available():
        return "cuda"
    assert triton.knobs.runtime.interpret, "TRITON_INTERPRET must be set before triton is imported"
    return "cpu"
