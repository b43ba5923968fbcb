"""`film_aggregate` against its definition in fp64: results and gradients, over graphs, dtypes and widths."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, film_aggregate
from braidwork.kernels.sparse.film import pick_film
from braidwork.kernels.testing import FLOAT_DTYPES, devices, graph_zoo

_spec = importlib.util.spec_from_file_location("sparse_reference", Path(__file__).with_name("reference.py"))
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

DEVICE = devices()[0]
NAMES = ("x", "gamma", "beta")


def graph(name: str) -> SparseMatrix:
    return reference.matrix(graph_zoo()[name], weighted=False, duplicates="keep", device=DEVICE)


def plain(A: SparseMatrix, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, reduce: str) -> torch.Tensor:
    """The definition, edge by edge, on the CPU; differentiable."""
    row, col = A.row.cpu().long(), A.col.cpu().long()
    message = (gamma[row] * x[col] + beta[row]).relu()
    y = torch.zeros(A.shape[0], x.shape[1], dtype=x.dtype).index_add(0, row, message)
    return y / torch.bincount(row, minlength=A.shape[0]).clamp(min=1).unsqueeze(1) if reduce == "mean" else y


def inputs(A: SparseMatrix, F: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, gamma and beta that require gradients; multiples of 1/8, so that no message lies close to 0 by rounding."""
    generator = torch.Generator().manual_seed(F)
    shapes = ((A.shape[1], F), (A.shape[0], F), (A.shape[0], F))
    return [
        (torch.randint(-16, 17, shape, generator=generator) / 8 + offset).to(DEVICE, dtype).requires_grad_()
        for shape, offset in zip(shapes, (0.0, 0.0, 1 / 128))
    ]


def check(A: SparseMatrix, ours: list[torch.Tensor], reduce: str = "mean") -> None:
    """y and all gradients. In 16 bits the gradient comes in rounded, and so does its product with gamma."""
    reference.compare(
        NAMES, ours, lambda *t: film_aggregate(A, *t, reduce), lambda *t: plain(A, *t, reduce),
        lambda y, a: reference.rounded(y.dtype) if y.dtype.itemsize == 2 else {},
    )  # fmt: skip


@pytest.mark.parametrize("name", list(graph_zoo()))
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_awkward_graphs(name: str, reduce: str) -> None:
    """Empty rows, no entries, hubs, duplicates that count each, rectangles."""
    A = graph(name)
    check(A, inputs(A, 5, torch.float32), reduce)


@pytest.mark.parametrize("F", [1, 3, 16, 64, 65, 128, 300])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_dtypes_and_widths(dtype: torch.dtype, F: int) -> None:
    A = graph("wide" if F < 100 else "empty_rows")
    check(A, inputs(A, F, dtype))


def test_transpose() -> None:
    for name in ("tall", "power_law", "duplicates"):
        A = graph(name).T
        check(A, inputs(A, 7, torch.float64))


def test_halves_of_one_tensor_are_not_copied() -> None:
    """gamma and beta as a layer has them, and operands whose rows do not lie in a row."""
    A = graph("uniform")
    x, *_ = inputs(A, 6, torch.float64)
    both = torch.randn(A.shape[0], 12, dtype=torch.float64, device=DEVICE)
    beta, gamma = both.split(6, 1)
    y = film_aggregate(A, x, gamma, beta)
    assert torch.equal(y, film_aggregate(A, x, gamma.contiguous(), beta.contiguous()))
    assert torch.equal(y, film_aggregate(A, x.detach().T.contiguous().T, gamma, beta.T.contiguous().T))


def test_gradcheck() -> None:
    A = graph("tall")
    generator = torch.Generator().manual_seed(3)
    ours = [
        torch.randn(n, 3, generator=generator, dtype=torch.float64).to(DEVICE).requires_grad_()
        for n in (A.shape[1], A.shape[0], A.shape[0])
    ]
    assert torch.autograd.gradcheck(lambda *t: film_aggregate(A, *t), ours, nondet_tol=0.0)


def test_only_what_is_asked_for() -> None:
    A = graph("uniform")
    for wanted in NAMES:
        ours = [t if name == wanted else t.detach() for name, t in zip(NAMES, inputs(A, 4, torch.float64))]
        (g,) = torch.autograd.grad(film_aggregate(A, *ours).sum(), ours[NAMES.index(wanted)])
        assert g.abs().sum() > 0
    assert not film_aggregate(A, *(t.detach() for t in ours)).requires_grad


def test_nan_and_infinity_propagate() -> None:
    A = SparseMatrix.from_coo([0, 0, 1], [0, 1, 2], shape=(3, 3)).to(DEVICE)
    x = torch.tensor([[1.0], [float("nan")], [float("inf")]], device=DEVICE)
    one, zero = torch.ones(3, 1, device=DEVICE), torch.zeros(3, 1, device=DEVICE)
    y = film_aggregate(A, x, one, zero).flatten().tolist()
    assert y[0] != y[0] and y[1] == float("inf") and y[2] == 0.0


def test_the_same_in_every_run() -> None:
    A = graph("power_law")
    ours = inputs(A, 33, torch.float32)
    runs = []
    for _ in range(3):
        y = film_aggregate(A, *ours)
        runs.append([y, *torch.autograd.grad(y.square().sum(), ours)])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))


def test_once_and_not_twice() -> None:
    A = graph("uniform")
    ours = inputs(A, 2, torch.float64)
    (g,) = torch.autograd.grad(film_aggregate(A, *ours).square().sum(), ours[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="film_aggregate can be differentiated once"):
        torch.autograd.grad(g.sum(), ours[0])


def test_opcheck_and_compile() -> None:
    A = graph("wide")
    ours = inputs(A, 5, torch.float32)
    storage = A.storage()
    arguments = (*ours, A.inverse_counts(torch.float32), True, *storage, A.T.storage().tensors)
    torch.library.opcheck(torch.ops.braidwork.film_aggregate.default, arguments)
    film = torch.randn(A.shape[0], 3, 5, device=DEVICE)
    torch.library.opcheck(torch.ops.braidwork.film_aggregate_source.default, (ours[0].detach(), film, A.T.storage()[0]))
    compiled = torch.compile(lambda *t: film_aggregate(A, *t) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*ours), 2 * film_aggregate(A, *ours))


def test_configurations_do_not_exceed_the_registers() -> None:
    for backend in ("cpu", "cuda", "hip"):
        for F in (1, 60, 64, 1000):
            config = pick_film(1000, 5000, F, torch.float32, backend)
            assert config.block_f <= 64 and config.block_f * config.batch <= 512 and config.share >= 1


def test_errors_name_the_argument() -> None:
    A = graph("uniform")
    x, gamma, beta = (t.detach() for t in inputs(A, 4, torch.float32))
    weighted = A.with_values(torch.rand(A.nnz, device=DEVICE))
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: film_aggregate(x, x, gamma, beta)),
        (ValueError, "A: need a matrix without values", lambda: film_aggregate(weighted, x, gamma, beta)),
        (TypeError, "x: need a dense tensor", lambda: film_aggregate(A, x.int(), gamma, beta)),
        (ValueError, r"x: need shape \[.*, F\]", lambda: film_aggregate(A, x[1:], gamma, beta)),
        (ValueError, r"gamma: need shape", lambda: film_aggregate(A, x, gamma[:, :3], beta)),
        (ValueError, r"beta: need shape", lambda: film_aggregate(A, x, gamma, beta[1:])),
        (TypeError, "beta: need the dtype of x", lambda: film_aggregate(A, x, gamma, beta.double())),
        (ValueError, "reduce: need one of mean, sum, got 'max'", lambda: film_aggregate(A, x, gamma, beta, "max")),
    ):
        with pytest.raises(error, match=message):
            call()
