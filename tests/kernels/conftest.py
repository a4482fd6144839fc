"""Each test runs on every library that was built and that this machine can run, and on the torch twins."""

from collections.abc import Iterator

import pytest
import torch

from kvferry_kernels import native, ops


@pytest.fixture(params=[*native.available(), "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make ops use this variant; its name."""
    name = str(request.param)
    monkeypatch.setattr(ops, "KERNELS", None if name == "reference" else native.open_library(name))
    return name


@pytest.fixture
def threads() -> Iterator[None]:
    """Put torch's thread count back after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
