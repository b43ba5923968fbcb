"""Matrices of many kinds, seeded, on which formats are timed: `corpus`.

A family is a kind of structure; a matrix is a family, parameters and a seed, so that it can be made anew anywhere. Held
out of a model's training is always a whole family. The bundled real graphs are families of their own by origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
import scipy.spatial
import torch

from braidwork.kernels.sparse import SparseMatrix

Edges = tuple[np.ndarray, np.ndarray, tuple[int, int]]  # rows, columns, shape


@dataclass(frozen=True)
class Spec:
    """How to make a matrix: a family, its parameters, a seed; or a file."""

    name: str
    family: str
    params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    path: str | None = None

    def build(self) -> SparseMatrix:
        """The matrix, with values uniform in [0, 1).

        Raises:
            ValueError: an unknown family, a file that cannot be read.
        """
        rng = np.random.default_rng([self.seed, *self.name.encode()])
        if self.path is not None:
            row, col, shape = _from_file(Path(self.path))
        elif self.family in FAMILIES:
            row, col, shape = FAMILIES[self.family](rng, **self.params)
        else:
            raise ValueError(f"family: need one of {', '.join(FAMILIES)}, got {self.family!r}")
        pattern = SparseMatrix.from_coo(row, col, shape=shape).with_values(None)
        return pattern.with_values(torch.from_numpy(rng.random(pattern.nnz, dtype=np.float32)))


def matrix(family: str, seed: int = 0, **params: Any) -> SparseMatrix:
    """One matrix of a family, with values uniform in [0, 1): `matrix("banded", nnz=10_000, diagonals=9, reach=4)`.

    Raises:
        ValueError, TypeError: an unknown family, parameters that it does not have.
    """
    return Spec(family, family, params, seed).build()


def _from_file(path: Path) -> Edges:
    try:
        matrix = scipy.io.mmread(path) if path.suffix != ".npz" else scipy.sparse.load_npz(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a matrix that can be read ({error})") from error
    if not scipy.sparse.issparse(matrix):
        raise ValueError(f"{path}: need a sparse matrix, got a dense one of shape {matrix.shape}")
    coo = matrix.tocoo()
    return coo.row, coo.col, coo.shape


# -- families ----------------------------------------------------------------------------------------------------------


def uniform(rng: np.random.Generator, nnz: int, degree: float, aspect: float = 1.0) -> Edges:
    """Entries anywhere; row lengths are binomial."""
    rows = max(int(nnz / degree), 1)
    cols = max(int(rows * aspect), 1)
    return rng.integers(0, rows, nnz), rng.integers(0, cols, nnz), (rows, cols)


def regular(rng: np.random.Generator, nnz: int, degree: int) -> Edges:
    """Entries anywhere, as many in every row."""
    rows = max(nnz // degree, 1)
    return np.arange(rows).repeat(degree), rng.integers(0, rows, rows * degree), (rows, rows)


def rmat(rng: np.random.Generator, nnz: int, degree: float, skew: float) -> Edges:
    """Recursive matrices, of power laws on both sides (D. Chakrabarti, Y. Zhan and C. Faloutsos, SDM 2004). Corners
    have the probabilities skew, s, s and s / 2, where s = 0.4 (1 - skew)."""
    bits = max(int(math.log2(max(nnz / degree, 2))), 1)
    n = 1 << bits
    side = (1 - skew) * 0.4
    row, col = np.zeros(nnz, np.int64), np.zeros(nnz, np.int64)
    for _ in range(bits):
        where = rng.random(nnz)
        down, right = where >= skew + side, ((where >= skew) & (where < skew + side)) | (where >= skew + 2 * side)
        row, col = 2 * row + down, 2 * col + right
    shuffle = rng.permutation(n)
    return shuffle[row], shuffle[col], (n, n)


def power_law(rng: np.random.Generator, nnz: int, degree: float, exponent: float) -> Edges:
    """Row lengths of a power law, columns anywhere."""
    n = max(int(nnz / degree), 2)
    weight = np.arange(1, n + 1) ** -exponent
    row = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random(nnz)).clip(max=n - 1)
    return rng.permutation(n)[row], rng.integers(0, n, nnz), (n, n)


def hub(rng: np.random.Generator, nnz: int, degree: float, hubs: int, share: float) -> Edges:
    """Few rows and columns that hold a share of all entries, over a body of short rows."""
    n = max(int(nnz / degree), 4)
    many = int(nnz * share / 2)
    row, col = rng.integers(0, n, nnz - many), rng.integers(0, n, nnz - many)
    centre, other = rng.integers(0, hubs, many) * (n // hubs), rng.integers(0, n, many)
    return np.concatenate([row, centre, other]), np.concatenate([col, other, centre]), (n, n)


def banded(rng: np.random.Generator, nnz: int, diagonals: int, reach: int, fill: float = 1.0) -> Edges:
    """Diagonals at random distances up to `reach`, the main one among them, a share `fill` of their places taken."""
    n = max(nnz // diagonals, 2)
    reach = min(max(reach, diagonals // 2), n - 1)
    others = np.delete(np.arange(-reach, reach + 1), reach)
    offsets = np.append(rng.choice(others, min(diagonals - 1, others.shape[0]), replace=False), 0)
    row = np.arange(n).repeat(offsets.shape[0])
    col = row + np.tile(offsets, n)
    keep = (col >= 0) & (col < n)
    if fill < 1:
        keep &= rng.random(row.shape[0]) < fill
    return row[keep], col[keep], (n, n)


def stencil(rng: np.random.Generator, nnz: int, dims: int, corners: bool) -> Edges:
    """Points of a grid with their neighbours, diagonal ones included or not."""
    per_row = 3**dims if corners else 2 * dims + 1
    side = max(round((nnz / per_row) ** (1 / dims)), 2)
    grid = np.indices((side,) * dims).reshape(dims, -1)
    steps = np.indices((3,) * dims).reshape(dims, -1) - 1
    if not corners:
        steps = steps[:, np.abs(steps).sum(0) <= 1]
    to = grid[:, :, None] + steps[:, None, :]
    inside = ((to >= 0) & (to < side)).all(0)
    flat = np.ravel_multi_index(tuple(np.where(inside, to, 0)), (side,) * dims)
    row = np.broadcast_to(np.arange(side**dims)[:, None], inside.shape)
    return row[inside], flat[inside], (side**dims,) * 2


def blocks(rng: np.random.Generator, nnz: int, side: int, per_row: int, fill: float = 1.0, shift: int = 0) -> Edges:
    """Dense blocks at random places, with a share `fill` of their places taken; with a shift they lie off the grid."""
    many = max(nnz // (side * side * per_row), 1)
    n = many * side + shift
    at_row = np.arange(many).repeat(per_row) * side + shift
    at_col = rng.integers(0, many, many * per_row) * side + shift
    inner = np.indices((side, side)).reshape(2, -1)
    row, col = (at_row[:, None] + inner[0]).ravel(), (at_col[:, None] + inner[1]).ravel()
    if fill < 1:
        keep = rng.random(row.shape[0]) < fill
        row, col = row[keep], col[keep]
    return row, col, (n, n)


def mesh(rng: np.random.Generator, nnz: int, dims: int, ordered: bool) -> Edges:
    """Delaunay triangulation of random points, numbered along a line or at random."""
    n = max(nnz // (7 if dims == 2 else 16), 16)
    points = rng.random((n, dims))
    if ordered:
        points = points[np.lexsort((points * max(n ** (1 / dims), 1)).astype(np.int64).T)]
    simplices = scipy.spatial.Delaunay(points).simplices
    a, b = np.triu_indices(dims + 1, 1)
    row, col = simplices[:, a].ravel(), simplices[:, b].ravel()
    return np.concatenate([row, col]), np.concatenate([col, row]), (n, n)


def elements(rng: np.random.Generator, nnz: int, unknowns: int, dims: int, ordered: bool) -> Edges:
    """A mesh with several unknowns a point, as finite elements of vector fields have: its entries are dense blocks."""
    unknowns = max(min(unknowns, math.isqrt(nnz // 256)), 1)  # a mesh has 16 points at least
    row, col, (n, _) = mesh(rng, nnz // unknowns**2, dims, ordered)
    row, col = (np.append(ends, np.arange(n)) for ends in (row, col))  # a point's own block
    inner = np.indices((unknowns, unknowns)).reshape(2, -1)
    row, col = ((ends[:, None] * unknowns + inside).ravel() for ends, inside in zip((row, col), inner))
    return row, col, (n * unknowns,) * 2


def road(rng: np.random.Generator, nnz: int, kept: float, ordered: bool) -> Edges:
    """A grid of streets, some missing, whose blocks are subdivided: degrees of 2 to 4."""
    side = max(int(math.sqrt(nnz / (4 * kept))), 3)
    node = np.arange(side * side).reshape(side, side)
    a = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    b = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    keep = rng.random(a.shape[0]) < kept
    a, b = a[keep], b[keep]
    if not ordered:
        shuffle = rng.permutation(side * side)
        a, b = shuffle[a], shuffle[b]
    return np.concatenate([a, b]), np.concatenate([b, a]), (side * side,) * 2


def small_world(rng: np.random.Generator, nnz: int, degree: int, rewired: float) -> Edges:
    """A ring of near neighbours, some of whose ends were moved anywhere (D. J. Watts and S. H. Strogatz, 1998)."""
    half = max(degree // 2, 1)
    n = max(nnz // (2 * half), 2 * half + 2)
    row = np.arange(n).repeat(half)
    col = (row + np.tile(np.arange(1, half + 1), n)) % n
    moved = rng.random(row.shape[0]) < rewired
    col[moved] = rng.integers(0, n, int(moved.sum()))
    return np.concatenate([row, col]), np.concatenate([col, row]), (n, n)


def bipartite(rng: np.random.Generator, nnz: int, rows: int, cols: int, exponent: float) -> Edges:
    """Ratings: users by items, both of power laws."""
    row, col = (
        rng.permutation(n)[(n * rng.random(nnz) ** (1 / (1 - exponent))).astype(np.int64).clip(max=n - 1)]
        for n in (rows, cols)
    )
    return row, col, (rows, cols)


def sampled_block(rng: np.random.Generator, nnz: int, fanout: int, exponent: float) -> Edges:
    """What a neighbour sampler hands to a layer: `fanout` entries a row at most, columns numbered as first met."""
    rows = max(nnz // fanout, 1)
    lengths = np.minimum((fanout * rng.random(rows) ** -0.5 * 0.5).astype(np.int64).clip(min=1), fanout)
    row = np.arange(rows).repeat(lengths)
    pool = 4 * rows
    met = (pool * rng.random(row.shape[0]) ** (1 / (1 - exponent))).astype(np.int64).clip(max=pool - 1)
    _, first, col = np.unique(met, return_index=True, return_inverse=True)
    order = np.empty(first.shape[0], np.int64)
    order[np.argsort(first)] = np.arange(first.shape[0])
    return row, order[col], (rows, rows + first.shape[0])


def communities(rng: np.random.Generator, nnz: int, degree: float, size: int, inside: float) -> Edges:
    """A share `inside` of all entries within the community of their row, whose nodes are neighbours in number."""
    n = max(int(nnz / degree), size)
    row = rng.integers(0, n, nnz)
    near = np.minimum(row // size * size + rng.integers(0, size, nnz), n - 1)
    return row, np.where(rng.random(nnz) < inside, near, rng.integers(0, n, nnz)), (n, n)


def text(rng: np.random.Generator, nnz: int, words: int, per_row: float) -> Edges:
    """Bags of words: rows of a dozen to a hundred entries, columns by Zipf's law."""
    rows = max(int(nnz / per_row), 1)
    row = rng.integers(0, rows, nnz)
    weight = 1.0 / np.arange(1, words + 1)
    col = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random(nnz)).clip(max=words - 1)
    return row, rng.permutation(words)[col], (rows, words)


FAMILIES: dict[str, Callable[..., Edges]] = {
    f.__name__: f
    for f in (
        uniform, regular, rmat, power_law, hub, banded, stencil, blocks, mesh, elements, road, small_world, bipartite,
        sampled_block, communities, text,
    )
}  # fmt: skip


def _parameters(family: str, rng: np.random.Generator, nnz: int) -> dict[str, Any]:
    """Random parameters of a family for a matrix of about nnz entries."""

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def between(low: float, high: float) -> float:
        """Uniform in the logarithm."""
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 3)

    match family:
        case "uniform":
            return {"degree": between(1.5, 100), "aspect": pick(1.0, 1.0, 0.3, 3.0)}
        case "regular":
            return {"degree": pick(2, 3, 4, 6, 8, 12, 16, 24, 32, 64)}
        case "rmat":
            return {"degree": between(2, 40), "skew": round(rng.uniform(0.35, 0.65), 3)}
        case "power_law":
            return {"degree": between(2, 40), "exponent": round(rng.uniform(0.3, 1.1), 3)}
        case "hub":
            return {"degree": between(1.5, 12), "hubs": pick(1, 4, 16, 64), "share": round(rng.uniform(0.1, 0.8), 3)}
        case "banded":
            fill = pick(1.0, 1.0, 1.0, 0.9, 0.6, 0.3)
            return {"diagonals": pick(3, 5, 7, 9, 15, 27, 45), "reach": int(between(3, nnz / 16)), "fill": fill}
        case "stencil":
            return {"dims": pick(1, 2, 2, 3), "corners": pick(True, False)}
        case "blocks":
            side = pick(2, 4, 4, 8, 8, 16, 16, 32, 6)
            shift = pick(0, 0, 0, 1)
            return {"side": side, "per_row": pick(1, 2, 3, 5), "fill": pick(1.0, 1.0, 0.9, 0.6, 0.3), "shift": shift}
        case "mesh":
            return {"dims": pick(2, 2, 3), "ordered": pick(True, True, False)}
        case "elements":
            return {"unknowns": pick(2, 3, 4, 6, 8, 12, 16), "dims": pick(2, 2, 3), "ordered": pick(True, True, False)}
        case "road":
            return {"kept": round(rng.uniform(0.55, 0.95), 3), "ordered": pick(True, True, False)}
        case "small_world":
            return {"degree": pick(4, 6, 10, 16, 30), "rewired": between(0.002, 0.8)}
        case "bipartite":
            cols = int(between(max(nnz / 200, 10), max(nnz / 3, 20)))
            rows = int(between(max(nnz / 200, 10), max(nnz / 3, 20)))
            return {"rows": rows, "cols": cols, "exponent": round(rng.uniform(0.0, 0.7), 3)}
        case "sampled_block":
            return {"fanout": pick(4, 5, 10, 15, 25), "exponent": round(rng.uniform(0.0, 0.6), 3)}
        case "communities":
            size = pick(50, 200, 500, 2000)
            return {"degree": between(3, 60), "size": size, "inside": round(rng.uniform(0.5, 0.98), 3)}
        case "text":
            return {"words": pick(1000, 1433, 5000, 20000), "per_row": between(8, 150)}
    raise ValueError(f"family: need one of {', '.join(FAMILIES)}, got {family!r}")


def corpus(
    per_family: int = 24,
    least_nnz: float = 1e3,
    most_nnz: float = 5e6,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Iterator[Spec]:
    """Synthetic matrices of every family, sizes uniform in the logarithm, and the matrices of a folder.

    Args:
        per_family: matrices of each family.
        least_nnz, most_nnz: range of the number of entries (before equal coordinates are merged).
        seed: other seeds give other matrices.
        folder: of MatrixMarket files (.mtx, .mtx.gz) and SciPy's .npz, each a matrix of the family "file", or None.

    Raises:
        ValueError: an empty range, no such folder.
    """
    if not 1 <= least_nnz <= most_nnz:
        raise ValueError(f"least_nnz: need 1 <= least_nnz <= most_nnz, got {least_nnz} and {most_nnz}")
    for family in FAMILIES:
        rng = np.random.default_rng([seed, *family.encode()])
        # One from every part of the range, in a random order, so that a corpus cut short still spans it.
        parts = (rng.permutation(per_family) + rng.random(per_family)) / max(per_family, 1)
        for k, part in enumerate(parts):
            nnz = int(least_nnz * (most_nnz / least_nnz) ** part)
            yield Spec(f"{family}-{k}", family, {"nnz": nnz, **_parameters(family, rng, nnz)}, seed)
    if folder is not None:
        if not Path(folder).is_dir():
            raise ValueError(f"folder: {folder} is not a folder")
        for path in sorted(p for p in Path(folder).iterdir() if p.name.endswith((".mtx", ".mtx.gz", ".npz"))):
            yield Spec(path.name.partition(".")[0], "file", path=str(path))
