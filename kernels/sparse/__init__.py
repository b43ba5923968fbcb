"""Sparse matrices in many storage formats, and the operators on them."""

from __future__ import annotations

from . import csr  # noqa: F401  enters its format into the table
from .formats import FORMATS
from .matrix import SparseMatrix
from .spmm import spmm

__all__ = ["FORMATS", "SparseMatrix", "spmm"]
