"""`gat_aggregate` against its definition in fp64: results and gradients, over graphs, dtypes and shapes of heads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from braidwork.kernels.sparse import SparseMatrix, gat_aggregate
from braidwork.kernels.sparse.attention import pick_gat
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]
INF, NAN = float("inf"), float("nan")
NAMES = ("x", "source_score", "target_score")


def graph(name: str) -> SparseMatrix:
    return reference.matrix(graph_zoo()[name], weighted=False, duplicates="keep", device=DEVICE)


def plain(A: SparseMatrix, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, slope: float) -> torch.Tensor:
    """The definition, edge by edge and row by row with `torch.softmax`; differentiable, on the CPU."""
    row, col = A.row.cpu().long(), A.col.cpu().long()
    logits = torch.nn.functional.leaky_relu(source[col] + target[row], slope)
    order = torch.argsort(row, stable=True)
    counts = torch.bincount(row, minlength=A.shape[0]).tolist()
    rows = []
    for mine in order.split(counts):
        p = torch.softmax(logits[mine], 0)
        rows.append((p[:, :, None] * x[col[mine]]).sum(0))
    return torch.stack(rows) if rows else x.new_zeros((0, *x.shape[1:])) + (x.sum() + source.sum() + target.sum())


def inputs(
    A: SparseMatrix, H: int, D: int, dtype: torch.dtype, scores: torch.dtype | None = None
) -> list[torch.Tensor]:
    """Random x, source_score, target_score that require gradients."""
    generator = torch.Generator().manual_seed(17 * H + D)
    rows, cols = A.shape
    shapes = ((cols, H, D), (cols, H), (rows, H))
    dtypes = (dtype, scores or dtype, scores or dtype)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, of).requires_grad_()
        for shape, of in zip(shapes, dtypes)
    ]


def check(A: SparseMatrix, ours: list[torch.Tensor], slope: float = 0.2) -> None:
    """y and all gradients. Gradients of fp32 scores beside an x of 16 bits may have the precision of x."""

    def bounds(y: torch.Tensor, a: torch.Tensor) -> dict[str, float]:
        return reference.rounded(y.dtype) if a.dtype == torch.float32 != y.dtype else {}

    reference.compare(
        NAMES, ours, lambda *t: gat_aggregate(A, *t, slope), lambda *t: plain(A, *t, slope), bounds
    )


# ---------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", list(graph_zoo()))
def test_awkward_graphs(name: str) -> None:
    """Empty rows, no entries, hubs, duplicates that count each, rectangles."""
    A = graph(name)
    check(A, inputs(A, 3, 5, torch.float32))


@pytest.mark.parametrize("heads", [(8, 8), (1, 1), (1, 7), (5, 1), (4, 16), (3, 100), (70, 3), (2, 700)], ids=str)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_dtypes_and_heads(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    A = graph("wide" if heads[1] < 100 else "empty_rows")
    check(A, inputs(A, *heads, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_scores_in_fp32_with_x_in_16_bits(dtype: torch.dtype) -> None:
    A = graph("uniform")
    check(A, inputs(A, 4, 6, dtype, scores=torch.float32))


def test_scores_in_fp32_with_x_in_fp64() -> None:
    A = graph("uniform")
    ours = inputs(A, 4, 6, torch.float64, scores=torch.float32)
    y = gat_aggregate(A, *ours)
    assert_close("y", y, plain(A, *(t.detach().cpu().double() for t in ours), 0.2), rms=1e-14, max=1e-12)
    assert [g.dtype for g in torch.autograd.grad(y.sum(), ours)] == [t.dtype for t in ours]


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.9])
def test_slopes(slope: float) -> None:
    A = graph("uniform")
    check(A, inputs(A, 2, 4, torch.float64), slope)


def test_slope_1_takes_no_notice_of_targets() -> None:
    A = graph("uniform")
    x, source, target = inputs(A, 2, 4, torch.float64)
    y = gat_aggregate(A, x, source, target, 1)
    assert_close("y", y, gat_aggregate(A, x, source, target * 0, 1).detach(), rms=1e-14, max=1e-12)
    (g,) = torch.autograd.grad(y.sin().sum(), target)
    assert g.abs().max() < 1e-13


def test_transpose() -> None:
    for name in ("tall", "power_law", "duplicates", "self_loops"):
        A = graph(name).T
        check(A, inputs(A, 3, 4, torch.float32))


def test_duplicates_count_each() -> None:
    A = SparseMatrix.from_coo([0, 0, 0], [0, 0, 1], shape=(1, 2), duplicates="keep").to(DEVICE)
    x = torch.tensor([[[3.0]], [[6.0]]], device=DEVICE)
    zero = torch.zeros(2, 1, device=DEVICE)
    assert gat_aggregate(A, x, zero, zero[:1]).item() == pytest.approx(4.0)


def test_gradcheck() -> None:
    A = SparseMatrix.from_coo([0, 0, 1, 3, 3, 3, 3], [1, 4, 4, 0, 1, 2, 2], shape=(4, 5), duplicates="keep").to(DEVICE)
    for matrix in (A, A.T):
        assert torch.autograd.gradcheck(lambda *t, A=matrix: gat_aggregate(A, *t), inputs(matrix, 2, 3, torch.float64))


def test_gradients_of_some_inputs() -> None:
    A = graph("uniform")
    full = inputs(A, 3, 4, torch.float64)
    expected = torch.autograd.grad(gat_aggregate(A, *full).sin().sum(), full)
    for wanted in range(3):
        leaves = [t.detach().requires_grad_(k == wanted) for k, t in enumerate(full)]
        (g,) = torch.autograd.grad(gat_aggregate(A, *leaves).sin().sum(), leaves[wanted])
        assert torch.equal(g, expected[wanted])


def test_second_derivative_is_refused() -> None:
    A = graph("uniform")
    ours = inputs(A, 2, 2, torch.float64)
    (g,) = torch.autograd.grad(gat_aggregate(A, *ours).sin().sum(), ours[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="once, not twice"):
        g.sum().backward()


def test_nothing_to_do() -> None:
    for name, H, D in (("no_entries", 2, 3), ("no_rows", 2, 3), ("no_columns", 2, 3), ("wide", 0, 3), ("wide", 2, 0)):
        A = graph(name)
        ours = inputs(A, H, D, torch.float32)
        y = gat_aggregate(A, *ours)
        assert y.shape == (A.shape[0], H, D) and not y.any()
        y.sum().backward()
        assert all(t.grad.shape == t.shape and not t.grad.any() for t in ours)


# ------------------------------------------------------------------------------------------------- extreme numbers


def test_large_logits_do_not_overflow() -> None:
    A = graph("uniform")
    ours = inputs(A, 2, 3, torch.float32)
    ours = [ours[0], *((t * 300).detach().requires_grad_() for t in ours[1:])]
    check(A, ours)


def test_a_score_of_minus_infinity_counts_nothing() -> None:
    A = SparseMatrix.from_coo([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], shape=(2, 3)).to(DEVICE)
    x, source, target = inputs(A, 1, 2, torch.float64)
    with torch.no_grad():
        source[0] = -INF
    y = gat_aggregate(A, x, source, target)
    few = SparseMatrix.from_coo([0, 0, 1], [1, 2, 1], shape=(2, 3)).to(DEVICE)
    assert torch.equal(y, gat_aggregate(few, x, source, target))
    grads = torch.autograd.grad(y.sum(), (x, source, target))
    assert all(g.isfinite().all() for g in grads) and not grads[0][0].any() and not grads[1][0].any()


@pytest.mark.parametrize("bad", [NAN, INF, -INF], ids=str)
def test_bad_logits_stay_in_their_row_and_head(bad: float) -> None:
    """NaN and +inf in one logit, or -inf in all of a row, give NaN there as `torch.softmax` does, and nowhere else."""
    A = SparseMatrix.from_coo([0, 0, 1, 1, 1], [0, 1, 1, 2, 3], shape=(3, 4)).to(DEVICE)
    x, source, target = (t.detach() for t in inputs(A, 3, 2, torch.float32))
    source[0, 1] = bad
    if bad == -INF:
        source[1, 1] = bad
    y = gat_aggregate(A, x, source, target)
    exact = plain(A, *(t.cpu().double() for t in (x, source, target)), 0.2)
    assert exact[0, 1].isnan().all() and int(exact.isnan().sum()) == 2
    assert_close("y", y, exact)
    x[3, 0, 1] = NAN
    assert gat_aggregate(A, x, source, target)[1, 0].isnan().tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_hub_of_equal_entries_does_not_saturate(dtype: torch.dtype) -> None:
    """A running sum in fp16 stops at 2048, in bf16 at 256."""
    n = 6608
    A = SparseMatrix.from_coo(torch.zeros(n, dtype=torch.long), torch.arange(n), shape=(2, n)).to(DEVICE)
    ones = torch.ones(n, 2, 3, dtype=dtype, device=DEVICE)
    zeros = ones[:, :, 0] * 0
    y = gat_aggregate(A, ones, zeros, zeros[:2])
    assert y[0].tolist() == [[1.0] * 3] * 2 and not y[1].any()
    x = ones[:2].clone().requires_grad_()
    gat_aggregate(A.T, x, zeros[:2], zeros).sum().backward()
    assert x.grad[0].tolist() == [[torch.tensor(float(n)).to(dtype).item()] * 3] * 2


# ------------------------------------------------------------------------------------------------ layouts, addresses


def test_layouts() -> None:
    A = graph("uniform")
    full = inputs(A, 3, 4, torch.float64)
    expected = torch.autograd.grad(gat_aggregate(A, *full).sin().sum(), full)

    def like(t: torch.Tensor, layout: str) -> torch.Tensor:
        t = t.detach()
        if layout == "rows apart":
            return torch.cat([t, t], 1)[:, : t.shape[1]]
        if layout == "last apart":
            return torch.stack([t, t], -1)[..., 0]
        if layout == "reversed":
            return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
        return torch.cat([t[:1].flatten()[:1], t.flatten()])[1:].view(t.shape)  # an odd start

    for layout in ("rows apart", "last apart", "reversed", "odd start"):
        ours = [like(t, layout).requires_grad_() for t in full]
        assert layout == "odd start" or not any(t.is_contiguous() for t in ours)
        y = gat_aggregate(A, *ours)
        assert torch.equal(y, gat_aggregate(A, *full))
        grads = torch.autograd.grad(y.sin().sum(), ours)
        assert all(torch.equal(a, b) for a, b in zip(grads, expected))
    one = full[0].detach()[:1].expand(97, 3, 4)
    assert torch.equal(gat_aggregate(A, one, *full[1:]), gat_aggregate(A, one.contiguous(), *full[1:]))


def test_addresses_past_2_to_the_31() -> None:
    """x holds more than 2^31 elements; a handful of its pages are ever touched."""
    H, D = 8, 64
    cols = 2**31 // (H * D) + 1000
    x = torch.empty(cols, H, D, dtype=torch.float16, device=DEVICE)
    touched = [0, 5, cols // 2, cols - 2, cols - 1]
    for k in touched:
        x[k] = torch.arange(H * D, device=DEVICE).view(H, D) % 7 + k % 5
    A = SparseMatrix.from_coo([0, 0, 1, 2, 2], touched, shape=(3, cols)).to(DEVICE)
    small = SparseMatrix.from_coo([0, 0, 1, 2, 2], range(5), shape=(3, 5))
    source = torch.randn(1, H, dtype=torch.float16, device=DEVICE).expand(cols, H)
    target = torch.randn(3, H, dtype=torch.float16, device=DEVICE)
    assert A.row.dtype == torch.int32 and x.numel() > 2**31
    few = [torch.stack([t[k] for k in touched]).double().cpu() for t in (x, source)]
    assert_close("y", gat_aggregate(A, x, source, target), plain(small, *few, target.double().cpu(), 0.2))


# ---------------------------------------------------------------------------------------- determinism, memory, config


def test_same_bits_in_every_run_and_with_any_number_of_threads() -> None:
    n = 20_000
    hub = SparseMatrix.from_coo([1] * n, torch.arange(n), shape=(3, n)).to(DEVICE)
    before = torch.get_num_threads()
    try:
        for A in (graph("power_law"), hub, hub.T):
            ours = inputs(A, 8, 8, torch.float32)
            results = []
            for threads in (before, before, 1):
                torch.set_num_threads(threads)
                y = gat_aggregate(A, *ours)
                results.append([y, *torch.autograd.grad(y.square().sum(), ours)])
            for again in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))
    finally:
        torch.set_num_threads(before)


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that `call` holds at once beyond what was there before, as the allocator saw it."""
    call()
    kept = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as records:
        kept = call()
    del kept
    events = [e for e in records.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    assert events
    return peak


@pytest.mark.skipif(DEVICE != "cpu", reason="counts the allocations of the CPU")
def test_memory_is_far_below_that_of_messages() -> None:
    n, nnz, H, D = 500, 40_000, 4, 32
    A = SparseMatrix.from_coo(torch.randint(n, (nnz,)), torch.randint(n, (nnz,)), shape=(n, n), duplicates="keep")
    ours = inputs(A, H, D, torch.float32)
    gy = torch.randn(n, H, D)
    messages = nnz * H * D * 4
    dense = plain(A, *ours, 0.2)
    assert peak_bytes(lambda: plain(A, *ours, 0.2)) > messages  # the measurement sees what it is to see
    assert_close("y", gat_aggregate(A, *ours), dense)
    with torch.no_grad():
        nodes = n * H * D * 4
        assert peak_bytes(lambda: gat_aggregate(A, *ours)) < 2 * nodes
    both = peak_bytes(lambda: torch.autograd.grad(gat_aggregate(A, *ours), ours, gy))
    assert both < nnz * H * 4 + 4 * nodes < messages / 8


@pytest.mark.parametrize("backend", ["cpu", "cuda", "hip"])
def test_tiles_fit_and_cover(backend: str) -> None:
    for H, D in ((1, 1), (8, 8), (3, 5), (1, 1000), (500, 2), (64, 64)):
        for dtype in FLOAT_DTYPES:
            for rows, nnz in ((1, 0), (10, 10**6), (10**6, 10)):
                config = pick_gat(rows, nnz, H, D, dtype, backend)
                assert config.share >= 1 and config.batch >= 1
                assert config.block_h < 2 * H and config.block_d < 2 * D
                assert config.batch * config.block_h * config.block_d <= 512
                for power in (config.batch, config.block_h, config.block_d):
                    assert power & (power - 1) == 0


# ---------------------------------------------------------------------------------------------- as PyTorch sees it


def test_opcheck() -> None:
    A = graph("wide")
    x, source, target = ours = inputs(A, 2, 3, torch.float32)
    storage, storage_t = A.storage().tensors, A.T.storage().tensors
    op = torch.ops.braidwork.gat_aggregate.default
    torch.library.opcheck(op, (*ours, 0.2, 13, storage, storage_t))
    torch.library.opcheck(op, (*(t.detach() for t in ours), 0.2, 13, storage, []))
    x, source, target = (t.detach() for t in ours)
    y, norm = op(x, source, target, 0.2, 13, storage, [])
    backward = torch.ops.braidwork.gat_aggregate_backward.default
    for to_target in (True, False):
        given = (torch.randn_like(y), y, norm, x, source, target, 0.2, to_target, storage, storage_t)
        torch.library.opcheck(backward, given)


def test_gradients_without_the_transpose_say_so() -> None:
    A = graph("wide")
    y, _ = torch.ops.braidwork.gat_aggregate(*inputs(A, 2, 3, torch.float32), 0.2, 13, A.storage().tensors, [])
    with pytest.raises(RuntimeError, match="need the transpose"):
        y.sum().backward()


def test_compile_is_one_graph_with_the_same_results() -> None:
    A = graph("wide")
    ours = inputs(A, 2, 3, torch.float32)

    def layer(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return gat_aggregate(A, x * 2, source, target).relu().flatten(1)

    eager = layer(*ours)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(*ours)
    assert_close("y", compiled, eager.detach())
    for name, a, b in zip(NAMES, *(torch.autograd.grad(y.square().sum(), ours) for y in (compiled, eager))):
        assert_close(name, a, b)


# ---------------------------------------------------------------------------------------------------------- the door


def test_errors_name_the_argument() -> None:
    A = SparseMatrix.from_coo([0, 1], [1, 2], shape=(2, 3)).with_values(None).to(DEVICE)
    x, s, t = (t.detach() for t in inputs(A, 4, 5, torch.float32))
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: gat_aggregate(x, x, s, t)),
        (ValueError, "A: need a matrix without values", lambda: gat_aggregate(A.with_values(s[:2, 0]), x, s, t)),
        (TypeError, "x: need a torch.Tensor", lambda: gat_aggregate(A, [1.0], s, t)),
        (TypeError, "x: need a dense tensor", lambda: gat_aggregate(A, x.long(), s, t)),
        (TypeError, "x: need a dense tensor", lambda: gat_aggregate(A, x.to_sparse(), s, t)),
        (ValueError, r"x: need shape \[3, H, D\]", lambda: gat_aggregate(A, x[:2], s, t)),
        (ValueError, r"x: need shape \[3, H, D\]", lambda: gat_aggregate(A, x[0], s, t)),
        (ValueError, "x: A is on", lambda: gat_aggregate(A, x.to("meta"), s, t)),
        (TypeError, "source_score: need a torch.Tensor", lambda: gat_aggregate(A, x, None, t)),
        (ValueError, r"source_score: need shape \[3, 4\]", lambda: gat_aggregate(A, x, t, t)),
        (TypeError, "source_score: need the dtype of x", lambda: gat_aggregate(A, x, s.double(), t)),
        (ValueError, r"target_score: need shape \[2, 4\]", lambda: gat_aggregate(A, x, s, s)),
        (TypeError, "target_score: need the dtype of x", lambda: gat_aggregate(A, x, s, t.half())),
        (ValueError, "target_score: A is on", lambda: gat_aggregate(A, x, s, t.to("meta"))),
        (TypeError, "negative_slope: need a number", lambda: gat_aggregate(A, x, s, t, "0.2")),
        (TypeError, "negative_slope: need a number", lambda: gat_aggregate(A, x, s, t, True)),
        *(
            (ValueError, "negative_slope: need a number from 0 to 1", lambda v=v: gat_aggregate(A, x, s, t, v))
            for v in (-0.1, 1.5, INF, NAN)
        ),
    ):
        with pytest.raises(error, match=message):
            call()
