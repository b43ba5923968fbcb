"""The script for GPUs, as far as a machine without one can try it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from braidwork.kernels import codec, gpu_check
from braidwork.kernels.testing import graph_zoo


def test_no_gpu_is_one_clear_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_the_reference_is_the_dense_product(reduce):
    graph = graph_zoo()["uniform"]
    x, gy = torch.randn(graph.shape[1], 3).double(), torch.randn(graph.shape[0], 3).double()
    value = torch.from_numpy(graph.value)
    y, *grads = gpu_check._by_definition(graph, x, value, gy, reduce)
    dense = graph.dense()
    if reduce == "sum":
        torch.testing.assert_close(y, dense @ x)
        torch.testing.assert_close(grads[0], dense.T @ gy)
        torch.testing.assert_close(grads[1], (gy @ x.T)[graph.row, graph.col])
    else:
        for i in range(graph.shape[0]):
            terms = dense[i, graph.col[graph.row == i], None] * x[graph.col[graph.row == i]]
            want = getattr(terms, reduce)(0) if len(terms) else torch.zeros(3).double()
            torch.testing.assert_close(y[i], want if reduce == "mean" or not len(terms) else want.values)


def test_a_wrong_kernel_and_a_forgotten_one_are_reported(monkeypatch):
    """A quantiser that doubles its scale fails; kernels that no comparison ran are named."""
    quantise = codec.quantize_int8
    monkeypatch.setattr(codec, "quantize_int8", lambda x, block: (quantise(x, block)[0], quantise(x, block)[1] * 2))
    only = [c for c in gpu_check._dense_checks("cpu") if c.name == "quantize_int8 torch.float32"]
    monkeypatch.setattr(gpu_check, "_dense_checks", lambda device: iter(only))
    monkeypatch.setattr(gpu_check, "_sparse_checks", lambda device, graphs: iter(()))
    failures = gpu_check.check("cpu")
    assert failures[0].startswith("quantize_int8 torch.float32: AssertionError")
    assert any("matmul_kernel: no comparison ran this kernel" in line for line in failures)
    assert not any("quantize_int8_kernel: no" in line for line in failures)


def test_one_sparse_comparison_of_each_kind():
    graph = graph_zoo()["empty_rows"]
    assert np.bincount(graph.row, minlength=graph.shape[0]).min() == 0
    for dtype, weighted, reduce in ((torch.float32, True, "sum"), (torch.float64, False, "max")):
        gpu_check._check_spmm("cpu", graph, dtype, weighted, reduce, 16)


@pytest.mark.slow
def test_rehearsal(tmp_path, capsys):
    assert gpu_check.main(["--device", "cpu", "--quick", "--out", str(tmp_path / "table.md")]) == 0
    assert "torch.sparse.mm" in (tmp_path / "table.md").read_text()
