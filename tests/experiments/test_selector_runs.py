"""What the studies of choices account for, on cases that can be worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from braidwork.experiments import scipy_formats, selector_runs


def test_pruning_leaves_whole_blocks_and_ever_fewer() -> None:
    steps = list(selector_runs.pruning(size=64, block=8, steps=5, uses=7, last=0.9))
    dense = [A.to_dense() for A, _ in steps]
    assert [uses for _, uses in steps] == [7] * 5
    for earlier, later in itertools.pairwise(dense):
        assert ((later != 0) <= (earlier != 0)).all() and (later != 0).sum() < (earlier != 0).sum()
    for weight in dense:
        whole = (weight.view(8, 8, 8, 8) != 0).sum((1, 3))
        assert set(whole.flatten().tolist()) <= {0, 64}
    assert steps[0][0].nnz == 32 * 64 and steps[-1][0].nnz == 6 * 64


def test_dropped_edges_are_drawn_anew_between_spells_on_the_whole_graph() -> None:
    steps = list(selector_runs.drop_edge("karate", rate=0.3, whole=50, dropped=2))
    assert [uses for _, uses in steps] == [50, 2, 2, 50, 2, 2, 50]
    nnz = [A.nnz for A, _ in steps]
    assert nnz[0] == nnz[3] == nnz[6] == 156 and all(70 < nnz[k] < 145 for k in (1, 2, 4, 5))
    samples = {tuple((A.row * 34 + A.col).tolist()) for A, _ in steps}
    assert len(samples) == 5, "four draws and the whole"


def test_activations_grow_sparse() -> None:
    nnz = [A.nnz for A, _ in selector_runs.relu(rows=200, width=20, steps=4, uses=1)]
    assert nnz == sorted(nnz, reverse=True) and nnz[0] > 1800 and nnz[-1] < 40


def test_a_conversion_is_made_up_for_after_so_many_uses() -> None:
    row = {
        "convert_s": {"csr": 1.0, "sell": 5.0, "dia": 0.5, "ell": 3.0},
        "product_s": {"csr": 0.4, "sell": 0.2, "dia": 0.1, "ell": 0.4},
    }
    assert selector_runs.even_after(row, "sell") == pytest.approx(20.0)
    assert selector_runs.even_after(row, "dia") == 0.0, "cheaper from the start"
    assert selector_runs.even_after(row, "ell") is None


def _products(families: int, each: int) -> list[dict]:
    """Times by a rule that a tree can learn: CSC is twice as fast as CSR where rows are long, else CSR is best."""
    rng = np.random.default_rng(0)
    names = dict.fromkeys(scipy_formats.COMMON_OF_MATRIX, 1.0) | {"cols": 64.0, "rows": 64.0, "spread": 8.0}
    out = []
    for k in range(families * each):
        mean = float(rng.uniform(1, 100))
        csc = 0.5e-3 if mean > 50 else 2e-3
        product_s = {"coo": 1.5e-3, "csr": 1e-3, "csc": csc, "lil": 1e-1}
        convert_s = {"coo": 0.0, "csr": 1e-3, "csc": 1e-3, "lil": 1e-2}
        found = names | {"mean": mean, "nnz": 64 * mean}
        out.append({"family": f"family{k % families}", "features": found, "F": 4, "features_s": 1e-4,
                    "convert_s": convert_s, "product_s": product_s})  # fmt: skip
    return out


def test_choices_are_learned_from_other_families_and_pay_for_themselves() -> None:
    products = _products(families=4, each=60)
    judged = scipy_formats.judge(products, uses=1000, boosting=60)
    assert np.mean(np.array(judged["pick"]) == np.array(judged["best"])) > 0.95
    for k, product in enumerate(products):
        seconds = {name: product["convert_s"][name] + 1000 * s for name, s in product["product_s"].items()}
        pick, best = judged["pick"][k], judged["best"][k]
        assert seconds[best] == min(seconds.values())
        assert judged["oracle_over_coo"][k] == pytest.approx(seconds["coo"] / seconds[best])
        with_overhead = seconds["coo"] / judged["total_over"]["coo"][k]
        assert seconds[pick] + 1e-4 < with_overhead < seconds[pick] + 0.1
    once = scipy_formats.judge(products, uses=1, boosting=60)
    assert set(once["best"]) == {"coo"}, "for a single use no conversion pays"
