"""Kernels that aren't attention compile for every card, too, as the table of kernels/README.md says."""

from tests.kernels.gpu.test_ahead import AHEAD, compiled, excess

FOR_MANY_ROWS = "large|square"
"""Of a product's tiles those that take most; the test that compiles everything has the others."""


def test_row_kernels_compile_for_every_card_as_the_page_says() -> None:
    found = compiled(
        AHEAD, f"^(rms_norm|add_rms_norm|rotate|silu|sample|quantize_rows|matmul,|fp8_matmul, ({FOR_MANY_ROWS}))"
    )
    assert {card for _, card in found} == {80, 90, 100}
    assert excess(found) == []
