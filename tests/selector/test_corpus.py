"""The corpus: seeded, of the sizes asked for, of the structure that each family's name says."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

from braidwork.selector.corpus import FAMILIES, Spec, corpus, matrix


def test_every_family_in_many_sizes() -> None:
    specs = list(corpus(per_family=6, least_nnz=200, most_nnz=20_000))
    assert len(specs) == 6 * len(FAMILIES) and {spec.family for spec in specs} == set(FAMILIES)
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        A = spec.build()
        assert 0 < A.nnz <= 3 * spec.params["nnz"], spec
        assert A.values is not None and A.values.dtype == torch.float32
        assert (A.values >= 0).all() and (A.values < 1).all()
        assert A.values.std() > 0.2 or A.nnz < 20
    for family, mine in itertools.groupby(specs, key=lambda spec: spec.family):
        sizes = sorted(spec.params["nnz"] for spec in mine)
        assert sizes[0] < 600 and sizes[-1] > 6_000, family  # spans the range


def test_the_same_matrix_from_the_same_seed() -> None:
    for spec, again in zip(corpus(2, 100, 1000), corpus(2, 100, 1000), strict=True):
        A, B = spec.build(), again.build()
        assert spec == again and torch.equal(A.row, B.row) and torch.equal(A.values, B.values)
    other = [spec.params for spec in corpus(2, 100, 1000, seed=1)]
    assert other != [spec.params for spec in corpus(2, 100, 1000)]


def test_structures() -> None:
    band = matrix("banded", nnz=9_000, diagonals=9, reach=4)
    assert set((band.col.long() - band.row.long()).tolist()) == set(range(-4, 5))
    assert torch.bincount(matrix("regular", nnz=4_000, degree=4).row.long()).max() <= 4
    star = torch.bincount(matrix("hub", nnz=20_000, degree=4.0, hubs=1, share=0.5).row.long())
    assert star.max() > 1000
    blocks = matrix("blocks", nnz=6_400, side=8, per_row=2)
    keys = blocks.row.long() // 8 * 10_000 + blocks.col.long() // 8
    assert set(keys.bincount()[keys.unique()].tolist()) == {64}
    for family, params in (("mesh", {"dims": 2, "ordered": True}), ("road", {"kept": 0.8, "ordered": False})):
        A = matrix(family, nnz=5_000, **params)
        assert A.is_symmetric() or A.pattern.is_symmetric()
    wide = matrix("sampled_block", nnz=3_000, fanout=5, exponent=0.3)
    assert wide.shape[1] > wide.shape[0] and torch.bincount(wide.row.long()).max() <= 5


def test_files_of_a_folder(tmp_path: Path) -> None:
    random = scipy.sparse.random_array((30, 20), density=0.2, rng=np.random.default_rng(0))
    scipy.io.mmwrite(tmp_path / "a.mtx", random)
    scipy.sparse.save_npz(tmp_path / "b.npz", random.tocsr())
    (tmp_path / "notes.txt").write_text("no matrix")
    specs = list(corpus(0, folder=tmp_path))
    assert [spec.name for spec in specs] == ["a", "b"] and all(spec.family == "file" for spec in specs)
    for spec in specs:
        A = spec.build()
        assert A.shape == (30, 20) and A.nnz == random.nnz
    (tmp_path / "c.mtx").write_text("not one")
    with pytest.raises(ValueError, match=r"c\.mtx: not a matrix"):
        list(corpus(0, folder=tmp_path))[-1].build()
    with pytest.raises(ValueError, match="folder"):
        list(corpus(0, folder=tmp_path / "nowhere"))


def test_refused() -> None:
    with pytest.raises(ValueError, match="family: need one of"):
        Spec("x", "moebius").build()
    with pytest.raises(ValueError, match="least_nnz"):
        list(corpus(1, 1000, 10))
