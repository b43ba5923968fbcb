"""Choices: what they weigh, that they are settled by a probe where they are close, and what a bad prediction costs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from braidwork.kernels.sparse import SparseMatrix, spmm
from braidwork.selector import CANDIDATES, Model, choose, model
from braidwork.selector.choose import auto, settle
from braidwork.selector.corpus import matrix
from braidwork.selector.features import NAMES
from braidwork.selector.machine import describe, fingerprint
from braidwork.selector.model import COLUMNS

choosing = __import__("importlib").import_module("braidwork.selector.choose")


class Oracle:
    """Regressors that give the seconds that a test wants, whatever the features."""

    def __init__(self, **seconds: float):
        self.seconds = seconds

    def log_seconds(self, x: np.ndarray) -> np.ndarray:
        return np.log2([self.seconds.get(NAMES[int(row[COLUMNS.index("format")])], 1.0) for row in x])

    def contributions(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(x.shape)
        out[:, COLUMNS.index("cv")] = self.log_seconds(x)
        return out


def model_of(conversion: dict[str, float] | None = None, spread: float = 0.1, **seconds: float) -> Model:
    weights = {name: [(conversion or {}).get(name, 0.0), 0.0, 0.0, 0.0] for name in NAMES}
    machine = {"kind": "cpu-test", "name": "a machine", "threads": 2}
    return Model(Oracle(**seconds), machine, weights, [seconds.get("csr", 1.0), 0, 0, 0], dict.fromkeys(NAMES, spread))


@pytest.fixture
def A() -> SparseMatrix:
    return matrix("stencil", nnz=2_000, dims=1, corners=True)


def test_least_time(A: SparseMatrix) -> None:
    choice = choose(A, 16, model=model_of(csr=0.5, dia=0.1, sell=0.2))
    assert choice.name == "dia" and choice.runner_up == "sell" and choice.settled_by == "prediction"
    assert choice.seconds == pytest.approx(0.1) and choice.runner_up_seconds == pytest.approx(0.2)
    assert choice.predictions["csr"] == pytest.approx(0.5)
    assert choice.source == "model of a machine, 2 threads, cpu-test, another machine"


def test_conversion_counts_once_and_products_count_each(A: SparseMatrix) -> None:
    predicted = model_of({"dia": 10.0, "csr": 0.1}, csr=0.5, dia=0.1)
    assert choose(A, 16, 20, model=predicted).name == "csr"  # 0.1 + 10 against 10 + 2
    assert choose(A, 16, 30, model=predicted).name == "dia"  # 0.1 + 15 against 10 + 3
    A.to("dia")  # what is there costs nothing more
    assert choose(A, 16, 1, model=predicted).name == "dia"


def test_memory_weight(A: SparseMatrix) -> None:
    predicted = model_of(csr=0.5, dia=0.4, ell=0.39)
    assert choose(A, 16, w=0.0, model=predicted).name == "ell"
    least = choose(A, 16, w=1.0, model=predicted)
    everything = {name: choose(A, 16, w=1.0, model=predicted, formats=[name]).bytes for name in least.predictions}
    assert least.bytes == min(everything.values())


def test_memory_is_bought_with_time(A: SparseMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slower format of less memory is a choice that no race may undo."""
    slower = model_of(csr=0.5, dia=0.55)
    monkeypatch.setattr(choosing, "_model_of", lambda device: slower)
    monkeypatch.setattr(choosing, "_race", None)
    assert A.auto(16, 1000, w=0.9).format == "dia" and A.auto(16, 1000).format == "csr"


def test_trained_values_stay_in_their_order(A: SparseMatrix) -> None:
    predicted = model_of(csr=0.5, dia=0.1, coo=0.3)
    trained = A.with_values(A.values.clone().requires_grad_())
    assert choose(trained, 16, model=predicted).name == "coo"
    assert choose(A, 16, values_change=True, model=predicted).name == "coo"
    assert choose(A.with_values(None), 16, values_change=True, model=predicted).name == "dia"


def test_formats_that_padding_rules_out() -> None:
    hub = matrix("hub", nnz=20_000, degree=4.0, hubs=1, share=0.5)
    choice = choose(hub, 16, model=model_of(csr=0.5, ell=0.001, dia=0.001))
    assert choice.name not in ("ell", "dia") and "ell" not in choice.predictions
    with pytest.raises(ValueError, match="formats: ell, dia would take .* places for every entry"):
        choose(hub, 16, formats=["ell", "dia"])


def test_nothing_is_looked_for_where_it_cannot_pay(A: SparseMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection of 2 ms and more is at most 3 % of the products to come, by a rough estimate that costs nothing."""
    monkeypatch.setattr(choosing, "_model_of", lambda device: model_of(csr=1e-4, dia=1e-6))
    asked: list[int] = []
    real = choosing.choose
    monkeypatch.setattr(choosing, "choose", lambda *a, **k: asked.append(1) or real(*a, **k))
    assert A.auto(16, 100).format == "csr" and not asked
    assert A.auto(16, 1000).format == "dia" and asked
    asked.clear()
    A.auto(16, 100, w=0.5)  # memory may be worth it
    assert asked


def test_why(A: SparseMatrix) -> None:
    choice = choose(A, 16, model=model_of(csr=0.5, dia=0.1))
    reasons = {name: factor for name, _, factor in choice.why(99)}
    assert np.prod(list(reasons.values())) == pytest.approx(5.0)
    assert len(choice.why(2)) == 2


def test_without_a_model_bytes_decide_and_a_line_says_so(A: SparseMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "model_for", lambda kind: None)
    choosing._say_once.cache_clear()
    with pytest.warns(UserWarning, match="make selector"):
        choice = choose(A, 16, 10**6)
    assert choice.name == "dia" and "make selector" in choice.source  # one row of x a column, not three
    assert choice.why() == [("bytes", choice.bytes, pytest.approx(choice.predictions["csr"] / choice.seconds))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(A, 16)  # once is enough


def test_another_machine_is_noticed_and_said(A: SparseMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = model_of(csr=0.5, dia=0.1)
    monkeypatch.setattr(choosing, "model_for", lambda kind: theirs)
    choosing._say_once.cache_clear()
    with pytest.warns(UserWarning, match=r"another machine \(a machine, 2 threads, cpu-test; .* `make selector`"):
        choose(A, 16)
    theirs.machine = fingerprint(A.device)
    choosing._say_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(A, 16).source == f"model of {describe(theirs.machine)}"


def test_a_close_call_is_timed(A: SparseMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    close = model_of({"sell": 1e-6}, spread=1.0, csr=1e-3, sell=0.9e-3)
    raced: list[int] = []

    def race(first: SparseMatrix, second: SparseMatrix, x: torch.Tensor) -> int:
        assert (first.format, second.format, tuple(x.shape)) == ("csr", "sell", (A.shape[1], 16))
        raced.append(1)
        return winner

    monkeypatch.setattr(choosing, "_race", race)
    for wins, name in ((0, "csr"), (1, "sell")):
        winner = wins
        choice = choose(A, 16, 10_000, model=close)
        assert choice.name == "sell" and choice.settled_by == "probe"
        assert settle(A, 16, choice) == name
        assert A.pattern.has("sell", False, CANDIDATES["sell"].key()) == (name == "sell")
    assert len(raced) == 2
    # With few uses to come a probe does not pay.
    assert settle(A, 16, choose(A, 16, 20, model=close)) == "csr" and len(raced) == 2


def test_a_real_race_finds_the_quicker_one() -> None:
    slow = matrix("hub", nnz=90_000, degree=3.0, hubs=1, share=0.6)
    # CSR against ELL padded to the hub's length, hundreds of times as long.
    padded = slow.to("ell", limit_bytes=1 << 34)
    assert choosing._race(slow.to("csr"), padded, torch.randn(slow.shape[1], 8)) == 0
    assert choosing._race(padded, slow.to("csr"), torch.randn(slow.shape[1], 8)) == 1


def test_a_sample_that_was_wrong_falls_back() -> None:
    """Parallel edges, which DIA has no place for, and diagonals that the sample did not meet."""
    row = torch.arange(1000).repeat(2)
    multigraph = SparseMatrix.from_coo(row, row, torch.rand(2000), (1000, 1000), duplicates="keep")
    unsure = model_of(spread=9.0, csr=1.0, dia=0.1)
    assert settle(multigraph, 8, choose(multigraph, 8, 10**6, model=unsure)) == "csr"


def test_auto_settles_each_direction_and_products_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    A = matrix("sampled_block", nnz=5_000, fanout=10, exponent=0.4)
    monkeypatch.setattr(choosing, "_model_of", lambda device: model_of(csr=0.5, sell=0.1))
    said: list[tuple[str, str]] = []
    B = A.auto(16, 1000, on_choice=lambda *what: said.append(what))
    assert said == [("forward", "sell"), ("backward", "sell")]
    assert B.format == "sell" and B.T.format == "sell" and A.format == "csr"
    x = torch.randn(A.shape[1], 16, requires_grad=True)
    (g,) = torch.autograd.grad(spmm(B, x).square().sum(), x)
    (exact,) = torch.autograd.grad(spmm(A, x).square().sum(), x)
    torch.testing.assert_close(g, exact)
    monkeypatch.setattr(choosing, "choose", None)  # not asked again
    assert A.with_values(2 * A.values).auto(16, 1000).format == "sell"
    assert auto(A, 16, 1000, backward=False).T.format == "csr"


def test_errors_name_the_argument(A: SparseMatrix) -> None:
    for error, message, call in (
        (TypeError, "A: need a SparseMatrix", lambda: choose(A.to_dense(), 16)),
        (ValueError, "F: need a whole number", lambda: A.auto(0)),
        (ValueError, "uses: need a whole number", lambda: A.auto(16, 2.5)),
        (ValueError, r"w: need a number in \[0, 1\]", lambda: A.auto(16, w=1.5)),
        (ValueError, "formats: need some of csr, .* got 'csx'", lambda: choose(A, 16, formats=["csx"])),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_file_that_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "selector").mkdir()
    (tmp_path / "selector" / "cpu-test.txt").write_text("nonsense")
    monkeypatch.setenv("BRAIDWORK_CACHE", str(tmp_path))
    model.reload()
    with pytest.raises(ValueError, match=r"cpu-test\.txt: not a model .* make selector"):
        model.model_for("cpu-test")
    model.reload()


