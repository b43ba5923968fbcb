"""Cases in which users of other libraries got a crash, a wrong value or a silent overflow, in every storage format.

Each test names a thread in which somebody met it. What is particular to one operator is in that operator's tests.
"""

from __future__ import annotations

import pytest
import torch

from braidwork.kernels.sparse import FORMATS, SparseMatrix, edge_softmax, gat_aggregate, sddmm, spmm, spmm_heads
from braidwork.kernels.testing import assert_close, devices

DEVICE = devices()[0]
SETTINGS = [
    ("coo", {}), ("csr", {}), ("csc", {}), ("ell", {}), ("sell", {}), ("hyb", {}), ("hyb", {"width": 1}), ("dia", {}),
    *(("bsr", {"block": block}) for block in (4, 8, 16, 32)),
]  # fmt: skip
ONE_PLACE = ("dia", "bsr")  # formats that cannot hold parallel edges

in_every_format = pytest.mark.parametrize(
    ("format", "params"), SETTINGS, ids=["".join(map(str, (f, *p.values()))) for f, p in SETTINGS]
)


def matrix(row, col, value, shape, format: str, params: dict[str, int], duplicates: str = "sum") -> SparseMatrix:
    A = SparseMatrix.from_coo(row, col, value, shape, duplicates).to(DEVICE)
    return A.to(format, limit_bytes=1 << 34, **params)


def test_every_format_is_tested() -> None:
    assert {format for format, _ in SETTINGS} == set(FORMATS)


@in_every_format
def test_rows_of_x_past_2_to_the_31(format: str, params: dict[str, int]) -> None:
    """An address is column times stride, which int32 cannot hold: rusty1s/pytorch_sparse#223, triton#6748."""
    F = 520
    cols = 2**31 // F + 1000
    x = torch.empty(cols, F, dtype=torch.float16, device=DEVICE)  # of which a handful of pages are ever touched
    assert x.numel() > 2**31
    touched = [0, 5, cols // 2, cols - 2, cols - 1]
    for k in touched:
        # A block of BSR reads its neighbours too.
        x[max(k - 32, 0) : k + 33] = 0
        x[k] = torch.arange(F, device=DEVICE) % 7 + k % 5
    A = matrix([0, 0, 1, 2, 2], touched, [1.0, 2.0, 3.0, 4.0, 5.0], (3, cols), format, params)
    weights = torch.zeros(3, 5, dtype=torch.float64)
    weights[[0, 0, 1, 2, 2], range(5)] = torch.arange(1.0, 6.0, dtype=torch.float64)
    small = torch.stack([x[k] for k in touched]).double().cpu()
    assert_close("y", spmm(A, x), weights @ small)
    assert_close("max", spmm(A.with_values(None), x, "max")[2], small[3:].amax(0))


@in_every_format
def test_columns_past_2_to_the_31(format: str, params: dict[str, int]) -> None:
    """Indices of 64 bits are used where, and only where, they are needed: dmlc/dgl#3766, pytorch#102520."""
    if format == "csc":
        pytest.skip("keeps a pointer for every column: 17 GB")
    cols = 2**31 + 7
    A = matrix([0, 1, 1], [cols - 1, 3, cols - 2], [1.0, 2.0, 3.0], (2, cols), format, params)
    assert A.row.dtype == torch.int64
    x = torch.tensor([[1.0, 2.0, 3.0]], device=DEVICE).expand(cols, 3)
    assert spmm(A, x).tolist() == [[1, 2, 3], [5, 10, 15]]
    assert spmm(A, x, "max").tolist() == [[1, 2, 3], [3, 6, 9]]
    small = matrix([0, 1, 1], [4, 3, 2], [1.0, 2.0, 3.0], (2, 5), format, params)
    integers = (t for t in small.storage().tensors if not t.is_floating_point())
    assert all(t.dtype in (torch.int32, torch.uint8, torch.bool) for t in integers)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@in_every_format
def test_long_sums_in_16_bits(format: str, params: dict[str, int], dtype: torch.dtype) -> None:
    """A running sum in fp16 stops at 2048: dmlc/dgl#4674. Both directions."""
    if format == "dia":
        pytest.skip("6,608 diagonals of one entry")
    n = 6608
    A = matrix(torch.zeros(n, dtype=torch.long), torch.arange(n), None, (2, n), format, params)
    exact = torch.tensor(float(n)).to(dtype).item()
    x = torch.ones(n, 3, dtype=dtype, device=DEVICE)
    assert spmm(A, x).tolist() == [[exact] * 3, [0.0] * 3]
    assert spmm(A, x, "mean")[0].tolist() == [1.0] * 3
    B = A.T.to(format, limit_bytes=1 << 34, **params).T
    g = torch.ones(2, 3, dtype=dtype, device=DEVICE, requires_grad=True)
    spmm(B.T.to("csr"), g).sum().backward()  # the gradient is a product with B
    assert g.grad.tolist() == [[exact] * 3, [0.0] * 3]


@in_every_format
def test_more_entries_than_places(format: str, params: dict[str, int]) -> None:
    """A multigraph may have nnz > M K: cusparseCreateCsr refuses it (dmlc/dgl#3265)."""
    row, col = torch.tensor([0, 1] * 50), torch.tensor([1, 0] * 50)
    value = torch.arange(100.0)
    if format in ONE_PLACE:
        with pytest.raises(ValueError, match="one place for a coordinate"):
            matrix(row, col, value, (2, 2), format, params, "keep")
        return
    A = matrix(row, col, value, (2, 2), format, params, "keep")
    x = torch.tensor([[1.0], [10.0]], device=DEVICE)
    assert A.nnz == 100 and spmm(A, x).tolist() == [[24500.0], [2500.0]]
    assert spmm(A, x, "max").tolist() == [[980.0], [99.0]] and spmm(A, x, "mean").tolist() == [[490.0], [50.0]]


@in_every_format
def test_entries_in_any_order(format: str, params: dict[str, int]) -> None:
    """Unsorted and repeated coordinates gave wrong results: pytorch#60277, cupy#3620, pyg#6699."""
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 23, (400,), generator=generator), torch.randint(0, 17, (400,), generator=generator)
    value = torch.randn(400, generator=generator, dtype=torch.float64)
    dense = torch.zeros(23, 17, dtype=torch.float64).index_put((row, col), value, accumulate=True)
    x = torch.randn(17, 5, dtype=torch.float64)
    for order in (torch.arange(400), torch.randperm(400, generator=generator), torch.arange(399, -1, -1)):
        A = matrix(row[order], col[order], value[order], (23, 17), format, params)
        assert_close("y", spmm(A, x.to(DEVICE)), dense @ x)


@pytest.mark.parametrize("reduce", ["max", "min"])
@in_every_format
def test_extremum_of_nothing(format: str, params: dict[str, int], reduce: str) -> None:
    """Rows without entries: 0, and no gradient from an index one past the end (pytorch_scatter#42, #373, #438).

    All terms of the others have the sign that loses against a 0 of padding.
    """
    sign = -1.0 if reduce == "max" else 1.0
    n = 37
    row = torch.arange(0, n, 3)
    A = matrix(row, row, torch.ones(row.shape[0]), (n, n), format, params)
    A = A.T.to(format, limit_bytes=1 << 34, **params).T
    x = (sign * (1 + torch.rand(n, 6))).to(DEVICE).requires_grad_()
    value = A.values.clone().requires_grad_()
    y = spmm(A.with_values(value), x, reduce)
    has = torch.zeros(n, dtype=torch.bool)
    has[row] = True
    assert torch.equal(y.detach().cpu()[has], x.detach().cpu()[has]) and not y.detach().cpu()[~has].any()
    gx, gvalue = torch.autograd.grad(y.sum(), (x, value))
    assert torch.equal(gx.cpu()[has], torch.ones(row.shape[0], 6)) and not gx.cpu()[~has].any()
    assert_close("gradient of values", gvalue, x.detach().double().cpu()[has].sum(1))


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (4, 4)], ids=str)
@in_every_format
def test_no_entries(format: str, params: dict[str, int], shape: tuple[int, int]) -> None:
    """nnz, M, K or F of zero: crashed (pytorch#115755, #190045), divided by N K (pytorch_sparse)."""
    rows, cols = shape
    A = matrix([], [], torch.zeros(0), shape, format, params)
    A = A.T.to(format, **params).T
    for F in (0, 3):
        for reduce in ("sum", "mean", "max", "min"):
            x = torch.randn(cols, F, device=DEVICE, requires_grad=True)
            bias = torch.full((F,), -1.0, device=DEVICE)
            y = spmm(A, x, reduce)
            assert y.shape == (rows, F) and not y.any()
            assert (spmm(A, x, reduce, bias=bias) == -1).all() and not spmm(A, x, reduce, bias=bias, relu=True).any()
            y.sum().backward()
            assert x.grad.shape == x.shape and not x.grad.any()
    assert A.traffic("spmm", 8).flops == 0


@in_every_format
def test_dense_operands_of_any_layout(format: str, params: dict[str, int]) -> None:
    """Strides were ignored: pytorch#76590 (silently wrong), #113754, #57403."""
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 40, (300,), generator=generator), torch.randint(0, 97, (300,), generator=generator)
    A = matrix(row, col, torch.randn(300, generator=generator, dtype=torch.float64), (40, 97), format, params)
    A = A.T.to(format, limit_bytes=1 << 34, **params).T
    dense = A.to_dense().cpu()
    base = torch.randn(97, 24, dtype=torch.float64)
    for name, x in {
        "rows apart": base[:, :5], "columns apart": base[:, ::2], "transposed": base.reshape(24, 97).T,
        "one row for all": base[:1].expand(97, 24), "one column for all": base[:, :1].expand(97, 24),
        "odd start": base.flatten()[3 : 3 + 97 * 8].view(97, 8), "backwards": base.flip(0),
    }.items():  # fmt: skip
        x = x.to(DEVICE).requires_grad_()
        y = spmm(A, x)
        assert_close(name, y, dense @ x.detach().cpu())
        g = base[:40, : y.shape[1]].T.contiguous().T.to(DEVICE)
        y.backward(g)
        assert_close(f"gradient, {name}", x.grad, dense.T @ g.cpu())


@in_every_format
def test_sides_that_differ(format: str, params: dict[str, int]) -> None:
    """Products with matrices that are not square failed with MKL (pytorch#58770, #60858) and in a cuSPARSE wrapper."""
    for rows, cols in ((1, 300), (300, 1), (5, 1000), (1000, 5)):
        generator = torch.Generator().manual_seed(rows)
        row = torch.randint(0, rows, (400,), generator=generator)
        col = torch.randint(0, cols, (400,), generator=generator)
        value = torch.randn(400, generator=generator, dtype=torch.float64)
        A = matrix(row, col, value, (rows, cols), format, params)
        A = A.T.to(format, limit_bytes=1 << 34, **params).T
        x = torch.randn(cols, 9, dtype=torch.float64, device=DEVICE, requires_grad=True)
        y = spmm(A, x)
        y.sum().backward()
        dense = A.to_dense().cpu()
        assert_close("y", y, dense @ x.detach().cpu())
        assert_close("gradient", x.grad, dense.sum(0)[:, None].expand(cols, 9))


@in_every_format
def test_values_at_an_address_used_before(format: str, params: dict[str, int]) -> None:
    """A cache by address returned the values of a freed tensor, whose memory another had got."""
    A = matrix([0, 1, 2, 2], [1, 2, 0, 1], None, (3, 3), format, params)
    x = torch.ones(3, 4, device=DEVICE)
    for k in range(20):
        y = spmm(A.with_values(torch.full((4,), float(k), device=DEVICE)), x)
        assert y[:, 0].tolist() == [k, k, 2 * k]


@in_every_format
def test_a_hub_among_empty_rows(format: str, params: dict[str, int]) -> None:
    """One row with a third of all entries, more rows without any than with one."""
    if format in ("dia", "ell"):
        pytest.skip("padded to the length of the hub")
    n, hub = 40_000, 17
    generator = torch.Generator().manual_seed(0)
    row = torch.cat([torch.full((9_000,), hub), torch.randint(0, n, (18_000,), generator=generator)])
    col = torch.randint(0, n, (27_000,), generator=generator)
    value = torch.randn(27_000, generator=generator)
    A = matrix(row, col, value, (n, n), format, params)
    x = torch.randn(n, 33, generator=generator)
    exact = torch.zeros(n, 33, dtype=torch.float64)
    exact.index_add_(0, A.row.long().cpu(), A.values.cpu().double()[:, None] * x[A.col.long().cpu()].double())
    assert_close("y", spmm(A, x.to(DEVICE)), exact, rms=1e-6, max=1e-3)  # sums of 9,000 terms of both signs


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (4, 4)], ids=str)
def test_operators_on_entries_without_entries(shape: tuple[int, int]) -> None:
    rows, cols = shape
    A = SparseMatrix.from_coo([], [], shape=shape).to(DEVICE)
    a, b = (torch.randn(n, 2, 3, device=DEVICE, requires_grad=True) for n in shape)
    assert sddmm(A, a, b).shape == (0, 2)
    assert edge_softmax(A, torch.zeros(0, 2, device=DEVICE)).shape == (0, 2)
    y = spmm_heads(A, torch.zeros(0, 2, device=DEVICE), b)
    z = gat_aggregate(A, b, torch.zeros(cols, 2, device=DEVICE), torch.zeros(rows, 2, device=DEVICE))
    for result in (y, z):
        assert result.shape == (rows, 2, 3) and not result.any()
        (g,) = torch.autograd.grad(result.sum(), b)
        assert g.shape == b.shape and not g.any()
