"""The comparison must reject what is wrong and the zoo must hold what it names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, error, graph_zoo


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_accepts_a_rounded_result_and_rejects_a_wrong_element(dtype):
    ref = torch.randn(33, 29, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close("y", ref.to(dtype), ref)
    wrong = ref.to(dtype, copy=True)
    wrong[7, 3] += 0.5
    with pytest.raises(AssertionError, match=r"(?s)y: .*1 of 957 elements.*\[7, 3\] got"):
        assert_close("y", wrong, ref)


def test_rejects_a_small_bias_that_no_element_shows():
    ref = torch.randn(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    biased = (ref * (1 + 8e-7)).float()
    assert error(biased, ref).max < 16 * torch.finfo(torch.float32).eps
    with pytest.raises(AssertionError, match="rms"):
        assert_close("y", biased, ref)


def test_tolerance_follows_the_baseline():
    ref = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rough = (ref + 1e-3 * torch.randn(1000, dtype=torch.float64)).float()
    with pytest.raises(AssertionError):
        assert_close("y", rough, ref)
    assert_close("y", rough, ref, baseline=rough)
    with pytest.raises(AssertionError):
        assert_close("y", ref.float() + 0.1, ref, baseline=rough)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_must_be_in_the_same_places(bad):
    ref = torch.ones(5, dtype=torch.float64)
    ref[2] = bad
    assert_close("y", ref.float(), ref)
    with pytest.raises(AssertionError, match=r"\[2\]"):
        assert_close("y", torch.ones(5), ref)
    with pytest.raises(AssertionError, match=r"\[2\]"):
        assert_close("y", ref.float(), torch.ones(5, dtype=torch.float64))
    with pytest.raises(AssertionError, match="no calibration"):
        assert_close("y", torch.ones(5), torch.ones(5, dtype=torch.float64), baseline=ref)


def test_overflow_of_the_dtype_is_an_infinity_and_nothing_else():
    ref = torch.tensor([1.0, 1e6], dtype=torch.float64)
    assert_close("y", ref.half(), ref)
    with pytest.raises(AssertionError, match=r"\[1\]"):
        assert_close("y", torch.tensor([1.0, 60000.0], dtype=torch.float16), ref)


def test_integers_are_compared_exactly_and_shapes_are_checked():
    assert_close("q", torch.tensor([1, 2], dtype=torch.int8), torch.tensor([1, 2]))
    with pytest.raises(AssertionError, match="must be equal"):
        assert_close("q", torch.tensor([1, 2]), torch.tensor([1, 3]))
    with pytest.raises(AssertionError, match="shape"):
        assert_close("q", torch.ones(2, 1), torch.ones(2, dtype=torch.float64))
    assert_close("empty", torch.ones(0, 4), torch.ones(0, 4, dtype=torch.float64))


def test_zoo_holds_what_it_names():
    zoo = graph_zoo()
    for name, graph in zoo.items():
        assert graph.row.dtype == graph.col.dtype == np.int64, name
        assert graph.row.shape == graph.col.shape == graph.value.shape, name
        if graph.row.size:
            assert 0 <= graph.row.min() and graph.row.max() < graph.shape[0], name
            assert 0 <= graph.col.min() and graph.col.max() < graph.shape[1], name
        key = graph.row * max(graph.shape[1], 1) + graph.col
        assert (np.unique(key).size < key.size) == (name == "duplicates"), name
    lengths = {name: np.bincount(graph.row, minlength=graph.shape[0]) for name, graph in zoo.items()}
    assert lengths["empty_rows"][0] == lengths["empty_rows"][-1] == 0 < lengths["empty_rows"].max()
    assert lengths["hub_row"].max() == 641 == lengths["hub_row"].sum()
    assert lengths["no_entries"].sum() == 0
    assert (lengths["isolated"][60:] == 0).all()
    assert lengths["power_law"].max() > 20 * lengths["power_law"].mean()
    loops = zoo["self_loops"]
    assert np.isin(np.arange(97), loops.row[loops.row == loops.col]).all()
    assert np.abs(zoo["banded"].row - zoo["banded"].col).max() == 3
    duplicates = zoo["duplicates"]
    coordinates = np.stack([duplicates.row, duplicates.col])
    summed = torch.sparse_coo_tensor(coordinates, duplicates.value, duplicates.shape, check_invariants=True)
    assert_close("dense", duplicates.dense(), summed.to_dense())
