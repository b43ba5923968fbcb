"""The fixtures of conftest.py do what the other tests rely on."""

from __future__ import annotations

import pytest
import torch


def allocate_as(module: str, expression: str) -> torch.Tensor:
    """Evaluate ``expression`` in a function that belongs to ``module``."""
    scope = {"__name__": module, "torch": torch}
    exec(f"def call(x):\n    return {expression}", scope)
    return scope["call"](torch.zeros(3))  # type: ignore[operator]


EXPRESSIONS = [
    "torch.empty(5)",
    "torch.empty((2, 3), dtype=torch.bfloat16)",
    "torch.empty_like(x)",
    "torch.empty_strided((2, 2), (2, 1))",
    "x.new_empty(4)",
    "x.new_empty_strided((2, 2), (1, 2))",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_buffers_of_the_package_are_poisoned(expression: str) -> None:
    assert allocate_as("braidwork.kernels.sparse.csr", expression).isnan().all()


def test_integer_buffers_are_poisoned() -> None:
    assert (allocate_as("braidwork.kernels.sparse.csr", "torch.empty(7, dtype=torch.int32)") == 90).all()
    assert allocate_as("braidwork.kernels.sparse.csr", "torch.empty(7, dtype=torch.bool)").all()


def test_callers_outside_the_package_get_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "fill_", lambda tensor, value: filled.append(tensor))
    allocate_as("braidwork.models.gcn", "torch.empty(5)")
    assert not filled
    allocate_as("braidwork.kernels.sparse.csr", "torch.empty(5)")
    assert len(filled) == 1


def test_compiled_functions_still_trace_whole() -> None:
    def allocate(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).zero_() + x

    x = torch.ones(4)
    torch.testing.assert_close(torch.compile(allocate, fullgraph=True, backend="eager")(x), x)


def test_seeds_are_those_of_every_test() -> None:
    expected = torch.Generator().manual_seed(0)
    torch.testing.assert_close(torch.rand(4), torch.rand(4, generator=expected), rtol=0, atol=0)
