"""The registry of storage formats: what a format has to bring, and the table that dispatch goes through.

A format lives in a file of its own, which ends in a call of `register`. `SparseMatrix` builds storages through the
table and caches them; the operator in `spmm.py` looks the launcher up by the name it is given. So adding a format
touches neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .. import alloc

if TYPE_CHECKING:
    from .pattern import Pattern


# Parameters of a format, all of them, sorted by name.
Params = tuple[tuple[str, int], ...]


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

    - `bias` [F] is added to every row, the empty ones too, and with `relu` what is negative becomes 0.

    value: [nnz] in the order of the matrix's entries, whatever order the format keeps them in. x: [K, F], any strides.
    Returns y [rows, F] in the dtype of x, and arg [rows, F] in the dtype of the indices, None without `with_arg`.
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
        bias: torch.Tensor | None = None,
        relu: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]: ...


@dataclass(frozen=True)
class Format:
    """A storage format.

    name: lower case, unique.
    build: (pattern, transposed, params, limit) -> storage of the pattern or of its transpose. Entries keep the numbers
        they have in the pattern. `params` holds a value for every name in `params` of the format. Raises ValueError,
        by `check_bytes`, before it allocates more than `limit` bytes.
    spmm: the launcher.
    coordinates: (storage, rows, columns) -> (row, col, entry), int64 [nnz] each, in any order: the way back.
    matrix_bytes: (storage, bytes of a value or 0) -> bytes of the matrix that one sum reads.
    params: the integers that `SparseMatrix.to` takes for this format, with their defaults.
    """

    name: str
    build: Callable[[Pattern, bool, Mapping[str, int], int], Storage]
    spmm: Launcher
    coordinates: Callable[[Storage, int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    matrix_bytes: Callable[[Storage, int], int]
    params: Mapping[str, int] = field(default_factory=dict)


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


def parse(name: str) -> tuple[str, dict[str, int]]:
    """A format with its first parameter in one word: "bsr16" is ("bsr", {"block": 16}), "csr" is ("csr", {}).

    Raises:
        ValueError: there is no such format, or it has no parameter.
    """
    if name in FORMATS:
        return name, {}
    format = name.rstrip("0123456789")
    params = lookup(format).params
    if not params:
        raise ValueError(f"format: {format} has no parameter, got {name!r}")
    return format, {next(iter(params)): int(name[len(format) :])}


def complete(format: str, params: Mapping[str, int]) -> Params:
    """Parameters with the format's defaults filled in, sorted by name. Raises TypeError."""
    defaults = lookup(format).params
    for name, value in params.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise TypeError(f"{name}: {format} has no such parameter; it has {known}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: need an integer, got {value!r}")
    return tuple(sorted({**defaults, **params}.items()))


def check_bytes(format: str, needed: int, limit: int, why: str) -> None:
    """Refuse a storage that padding blows up.

    Raises:
        ValueError: needed > limit; it states both, and `why`.
    """
    if needed > limit:
        raise ValueError(
            f"format: {format} would take {needed:,} bytes, over the limit of {limit:,} ({why}); "
            f"pass limit_bytes={needed} to build it all the same"
        )


def refuse_repeats(format: str, row: torch.Tensor, col: torch.Tensor) -> None:
    """Formats with one place for each coordinate cannot hold the parallel edges of a multigraph.

    row, col: sorted by row and then by column. Raises ValueError.
    """
    if bool(((row[1:] == row[:-1]) & (col[1:] == col[:-1])).any()):
        raise ValueError(
            f"format: {format} has one place for a coordinate, and this matrix repeats some; "
            'build it with duplicates="sum"'
        )


def nbytes(*tensors: torch.Tensor) -> int:
    """Bytes of the elements of some tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def operands(
    x: torch.Tensor, rows: int, index: torch.Tensor, with_arg: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What every launcher starts with: x, copied if its last dimension has a stride other than 1, and y and arg
    [rows, F] to be written, arg in the dtype of `index` and None without `with_arg`."""
    F = x.shape[1]
    if x.stride(1) != 1 and F > 1:
        x = x.contiguous()
    y = alloc.empty((rows, F), x.dtype, x.device)
    return x, y, alloc.empty((rows, F), index.dtype, x.device) if with_arg else None


def fill_empty(
    y: torch.Tensor, arg: torch.Tensor | None, bias: torch.Tensor | None, relu: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The product of a matrix without entries, written into y and arg."""
    y = y.zero_() if bias is None else y.copy_(bias.relu() if relu else bias)
    return y, None if arg is None else arg.fill_(-1)


def in_slots(value: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Values of entries [nnz] in the order of a padded format: value[slots], 0 where a slot is negative.

    Kept for as long as both tensors live and `value` is not written into, so that a matrix pays for it once. Values
    that are trained change in every step, and optimisers and checkers of gradients may write past the count of writes.
    """
    if value.requires_grad:
        return _pack(value.detach(), slots)
    kept = _in_slots.setdefault(value, {})
    found = kept.get(id(slots))
    if found is not None and found[0]() is slots and found[1] == value._version:
        return found[2]
    packed = _pack(value, slots)
    kept[id(slots)] = (weakref.ref(slots), value._version, packed)
    return packed


def _pack(value: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return value[slots.clamp(min=0).flatten()].view(slots.shape).masked_fill_(slots < 0, 0)


# By the identity of the tensor, and gone with it: an address may come to belong to another one.
_in_slots: MutableMapping[torch.Tensor, dict[int, tuple[Any, int, torch.Tensor]]] = WeakTensorKeyDictionary()
