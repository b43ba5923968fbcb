"""The registry of storage formats: what a format has to bring, and the table that dispatch goes through.

A format lives in a file of its own, which ends in a call of `register`. `SparseMatrix` builds storages through the
table and caches them; the operator in `spmm.py` looks the launcher up by the name it is given. So adding a format
touches neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from .pattern import Pattern


class Storage(NamedTuple):
    """One pattern in one format, as the plain tensors and integers that a registered operator can take.

    tensors: index arrays in the order the format defines.
    meta: integers that its launcher needs (sizes, row statistics).
    """

    tensors: list[torch.Tensor]
    meta: list[int]


class Launcher(Protocol):
    """Compute one product in a format.

    With w[e] = row_scale[i] value[e] col_scale[k] for entry e = (i, k), where what is None counts as 1:

    - reduce "sum": y[i, :] = sum over e in row i of w[e] x[k, :]
    - reduce "max" or "min": the extremum of the same terms, 0 in an empty row. With `with_arg` also
      arg[i, f] = the entry that attains it (the first of several), -1 in an empty row.
    - `route` (only with "sum"): int [K, F] from an extremum's `arg`; the term of entry e counts in column f only where
      route[k, f] == e. This carries gradients back through an extremum.

    value: [nnz] in the order of the matrix's entries, whatever order the format keeps them in. x: [K, F], any strides.
    Returns y [rows, F] in the dtype of x, and arg [rows, F] in the dtype of the indices (empty without `with_arg`).
    """

    def __call__(
        self,
        storage: Storage,
        rows: int,
        value: torch.Tensor | None,
        x: torch.Tensor,
        row_scale: torch.Tensor | None,
        col_scale: torch.Tensor | None,
        reduce: str,
        with_arg: bool = False,
        route: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True)
class Format:
    """A storage format.

    name: lower case, unique.
    build: (pattern, transposed) -> storage of the pattern or of its transpose. Entries keep the numbers they have in
        the pattern.
    spmm: the launcher.
    """

    name: str
    build: Callable[[Pattern, bool], Storage]
    spmm: Launcher


FORMATS: dict[str, Format] = {}


def register(new: Format) -> None:
    """Enter a format into the table.

    Raises:
        ValueError: the name is taken.
    """
    if new.name in FORMATS:
        raise ValueError(f"name: format {new.name!r} is already registered")
    FORMATS[new.name] = new


def lookup(name: str) -> Format:
    """The format called `name`.

    Raises:
        ValueError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"format: need one of {', '.join(sorted(FORMATS))}, got {name!r}") from None
