"""Sparse matrices in many storage formats, and the operators on them."""

from __future__ import annotations

from . import bsr, coo, csc, csr, dia, ell, hyb, sell  # noqa: F401  they enter their formats into the table
from .attention import gat_aggregate
from .edge_softmax import edge_softmax
from .film import film_aggregate
from .formats import FORMATS
from .heads import spmm_heads
from .matrix import SparseMatrix
from .sddmm import sddmm
from .spgemm import spgemm
from .spmm import spmm

__all__ = [
    "FORMATS",
    "SparseMatrix",
    "edge_softmax",
    "film_aggregate",
    "gat_aggregate",
    "sddmm",
    "spgemm",
    "spmm",
    "spmm_heads",
]
