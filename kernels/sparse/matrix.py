"""SparseMatrix: one sparse matrix, in whatever storage formats are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .build import VALUE_DTYPES, as_index, as_value, check_bounds, check_duplicates, check_rowptr, check_shape
from .formats import FORMATS, Params, Storage, complete
from .pattern import Pattern, canonical
from .traffic import Traffic, traffic

if TYPE_CHECKING:
    import scipy.sparse

# A format with the parameters it is built with.
FormatKey = tuple[str, Params]
DEFAULT_FORMAT: FormatKey = ("csr", ())


class SparseMatrix:
    """A sparse matrix [rows, columns] for the operators of this package.

    Held once, as coordinates sorted by row and then by column; the storage formats that operators need are built from
    them on first use and kept. Without values ("unweighted") every entry is 1, nothing is stored for it and kernels
    read nothing. Entries are numbered in that sorted order, and a matrix and its transpose number them alike.

    Make one with `from_coo`, `from_csr`, `from_scipy`, `from_torch` or `from_edge_index`. Immutable: methods return
    views or new matrices that share what they can. Do not write into its index tensors.

    Example:
        >>> A = SparseMatrix.from_edge_index(edge_index, num_nodes=n)
        >>> y = spmm(A, x, reduce="mean")
    """

    def __init__(
        self,
        pattern: Pattern,
        value: torch.Tensor | None = None,
        transposed: bool = False,
        formats: tuple[FormatKey, FormatKey] = (DEFAULT_FORMAT, DEFAULT_FORMAT),
    ):
        """Internal: trusts its arguments. `formats` are those of the matrix itself and of its transpose."""
        self.pattern = pattern
        self._value = value
        self._transposed = transposed
        self._formats = formats

    # ------------------------------------------------------------------------------------------------- constructors

    @classmethod
    def from_coo(
        cls,
        row: Any,
        col: Any,
        value: Any = None,
        shape: tuple[int, int] | None = None,
        duplicates: str = "sum",
    ) -> SparseMatrix:
        """From coordinates, in any order.

        Args:
            row, col: integers [nnz]: tensors, arrays or sequences; tensors on one device.
            value: floating point [nnz] (fp64, fp32, bf16 or fp16), or None for an unweighted matrix. NaN and infinities
                are kept and propagate. Gradients flow back to a tensor that requires them.
            shape: (rows, columns); by default the smallest that holds all entries.
            duplicates: what to do with equal coordinates. "sum" adds their values up (an unweighted matrix that has
                some gets their multiplicities as fp32 values); "keep" keeps them as entries of their own, as in a
                multigraph.

        Raises:
            TypeError: indices that are not integers; values that are complex or not floating point.
            ValueError: lengths or devices that differ, an index out of bounds, an impossible shape.
        """
        row = as_index("row", row)
        col = as_index("col", col, like=row)
        value = as_value("value", value, row.shape[0], row.device)
        merge = check_duplicates(duplicates)
        shape = check_bounds(row, col, None if shape is None else check_shape(shape))
        return cls(*canonical(row, col, value, shape, merge))

    @classmethod
    def from_csr(
        cls,
        rowptr: Any,
        col: Any,
        value: Any = None,
        shape: tuple[int, int] | None = None,
        duplicates: str = "sum",
    ) -> SparseMatrix:
        """From compressed rows: entries rowptr[i] to rowptr[i + 1] are in row i, columns in any order.

        Args:
            rowptr: integers [rows + 1], from 0 to nnz, never falling.
            col, value, shape, duplicates: as for `from_coo`.

        Raises:
            TypeError, ValueError: as `from_coo`, and a rowptr that is not one.
        """
        col = as_index("col", col)
        rowptr = as_index("rowptr", rowptr, device=col.device)
        counts = check_rowptr(rowptr, col.shape[0])
        rows = rowptr.shape[0] - 1
        if shape is not None and check_shape(shape)[0] != rows:
            raise ValueError(f"shape: rowptr has {rows} rows, got shape {tuple(shape)}")
        if shape is None:
            shape = (rows, int(col.max()) + 1 if col.shape[0] else 0)
        row = torch.repeat_interleave(counts, output_size=col.shape[0])
        return cls.from_coo(row, col, value, shape, duplicates)

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.spmatrix | scipy.sparse.sparray) -> SparseMatrix:
        """From a SciPy matrix or array of any format, with its values; repeated coordinates are summed.

        Raises:
            TypeError: not a SciPy sparse matrix; values that are complex or not floating point (`A.astype(...)` first,
                or pass coordinates alone to `from_coo` for an unweighted matrix).
        """
        import scipy.sparse

        if not scipy.sparse.issparse(matrix):
            raise TypeError(f"matrix: need a SciPy sparse matrix, got {type(matrix).__name__}")
        if matrix.ndim != 2:
            raise ValueError(f"matrix: need two dimensions, got shape {matrix.shape}")
        coo = matrix.tocoo()
        return cls.from_coo(coo.row, coo.col, coo.data, tuple(coo.shape))

    @classmethod
    def from_torch(cls, matrix: torch.Tensor) -> SparseMatrix:
        """From a torch tensor [rows, columns] of any sparse layout, or a dense one; gradients flow to its values.

        Repeated coordinates are summed.

        Raises:
            TypeError: not a tensor; values that are complex or not floating point.
            ValueError: batch or dense dimensions.
        """
        if not isinstance(matrix, torch.Tensor):
            raise TypeError(f"matrix: need a torch.Tensor, got {type(matrix).__name__}")
        if matrix.dim() != 2 or (matrix.layout == torch.sparse_coo and matrix.dense_dim()):
            raise ValueError(
                f"matrix: need two sparse dimensions and no other, got shape {tuple(matrix.shape)}"
            )
        coo = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse_coo()
        coo = coo.coalesce()
        row, col = coo.indices()
        return cls.from_coo(row, col, coo.values(), tuple(coo.shape))

    @classmethod
    def from_edge_index(
        cls,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        num_nodes: int | tuple[int, int] | None = None,
        duplicates: str = "keep",
    ) -> SparseMatrix:
        """From a graph in the convention of PyTorch Geometric.

        An edge goes from edge_index[0] to edge_index[1] and messages flow along it, so the entry of edge s -> t is in
        row t and column s: `spmm(A, x)[t]` aggregates x over the sources of the edges that end in t.

        Args:
            edge_index: integers [2, edges]: sources, targets.
            edge_weight: floating point [edges] or [edges, 1], or None.
            num_nodes: number of nodes, or (sources, targets) of a bipartite graph; by default as many as appear (the
                larger of the two sides for both).
            duplicates: "keep" by default, since there a parallel edge is a message of its own and counts in a mean;
                "sum" as for `from_coo`.

        Returns:
            A matrix [targets, sources].

        Raises:
            TypeError, ValueError: as `from_coo`.
        """
        edge_index = torch.as_tensor(edge_index)
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index: need shape [2, edges], got {tuple(edge_index.shape)}")
        source, target = as_index("edge_index", edge_index[0]), as_index("edge_index", edge_index[1])
        if edge_weight is not None and torch.is_tensor(edge_weight) and edge_weight.dim() == 2:
            edge_weight = edge_weight.squeeze(1) if edge_weight.shape[1] == 1 else edge_weight
        edge_weight = as_value("edge_weight", edge_weight, source.shape[0], source.device)
        if num_nodes is None:
            n = max(int(edge_index.max()) + 1, 0) if edge_index.numel() else 0
            shape = (n, n)
        elif isinstance(num_nodes, tuple):
            shape = check_shape(num_nodes, "num_nodes")[::-1]
        else:
            shape = check_shape((num_nodes, num_nodes), "num_nodes")
        return cls.from_coo(target, source, edge_weight, shape, duplicates)

    # --------------------------------------------------------------------------------------------------- properties

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, cols = self.pattern.shape
        return (cols, rows) if self._transposed else (rows, cols)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.pattern.nnz

    @property
    def device(self) -> torch.device:
        return self.pattern.row.device

    @property
    def dtype(self) -> torch.dtype | None:
        """dtype of the values, None if unweighted."""
        return None if self._value is None else self._value.dtype

    @property
    def row(self) -> torch.Tensor:
        """Row of every entry: [nnz], int32 where it fits."""
        return self.pattern.col if self._transposed else self.pattern.row

    @property
    def col(self) -> torch.Tensor:
        """Column of every entry: [nnz], int32 where it fits."""
        return self.pattern.row if self._transposed else self.pattern.col

    @property
    def values(self) -> torch.Tensor | None:
        """Value of every entry [nnz], in the order of `row` and `col`; None if unweighted."""
        return self._value

    @property
    def T(self) -> SparseMatrix:
        """The transpose: a view on the same entries, numbered alike."""
        return SparseMatrix(self.pattern, self._value, not self._transposed, self._formats[::-1])

    @property
    def transposed(self) -> bool:
        """Whether this is a view on the transpose of `pattern`."""
        return self._transposed

    @property
    def format(self) -> str:
        """Storage format that products with this matrix use (products with its transpose: `A.T.format`)."""
        return self._formats[0][0]

    @property
    def params(self) -> dict[str, int]:
        """The parameters that the format was built with, such as the block size of BSR; {} if it has none."""
        return dict(self._formats[0][1])

    @property
    def nbytes(self) -> int:
        """Bytes held now: coordinates, values, and everything built from them so far, shared memory counted once."""
        held = self.pattern.tensors() + ([] if self._value is None else [self._value])
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(storages.values())

    def storage(self) -> Storage:
        """This matrix in its format, built on first use. For operators."""
        format, params = self._formats[0]
        return self.pattern.storage(format, self._transposed, params)

    def inverse_counts(self, dtype: torch.dtype) -> torch.Tensor:
        """1 / number of entries of every row, 1 for an empty row: [rows]. For operators."""
        return self.pattern.inverse_counts(self._transposed, dtype)

    def is_symmetric(self) -> bool:
        """Whether the matrix equals its transpose, values included. Exact; a NaN equals nothing."""
        if not self.pattern.is_symmetric():
            return False
        if self._value is None:
            return True
        _, _, order = self.pattern.sorted(True)
        value = self._value.detach()
        return torch.equal(value, value[order])

    # ------------------------------------------------------------------------------------------------------ methods

    def with_values(self, value: torch.Tensor | None) -> SparseMatrix:
        """The same pattern with other values [nnz] in the order of `row` and `col`, or with none.

        Formats built for one are there for the other. Gradients flow back to `value`. Padded formats keep a copy of
        values that need no gradient, and notice in-place writes as autograd does: not those through `.data` or NumPy.
        """
        value = as_value("value", value, self.nnz, self.device)
        return SparseMatrix(self.pattern, value, self._transposed, self._formats)

    def to(
        self, target: str | torch.device | torch.dtype, *, limit_bytes: int | None = None, **params: int
    ) -> SparseMatrix:
        """The matrix on another device, with values of another dtype, or stored in another format.

        `A.to("cuda")` moves, `A.to(torch.bfloat16)` casts the values, and `A.to("csr")` builds the format at once and
        makes products with A use it. The transpose, by which gradients come back, has a format of its own:
        `A.T.to("csr").T`.

        Args:
            target: a format, a dtype or a device.
            limit_bytes: most bytes that a format may take, whose padding depends on the pattern; by default eight
                times what coordinates and fp32 values take, and 1 MiB.
            params: of the format (its page in docs/formats.md lists them), as in `A.to("bsr", block=16)`.

        Raises:
            TypeError: a parameter that the format does not have, or that is not an integer.
            ValueError: neither a format, a dtype nor a device; a parameter out of range; a storage over the limit, with
                the bytes it would take; repeated coordinates in a format that has one place for each.
        """
        if isinstance(target, str) and target in FORMATS:
            key = (target, complete(target, params))
            limit = None if limit_bytes is None else int(limit_bytes)
            self.pattern.storage(target, self._transposed, key[1], limit)
            return SparseMatrix(self.pattern, self._value, self._transposed, (key, self._formats[1]))
        if params or limit_bytes is not None:
            given = ", ".join([*params, *([] if limit_bytes is None else ["limit_bytes"])])
            raise TypeError(f"{given}: only a format takes parameters, and target is {target!r}")
        if isinstance(target, torch.dtype):
            if target not in VALUE_DTYPES:
                raise TypeError(f"target: values can be {_names(VALUE_DTYPES)}, got {target}")
            value = None if self._value is None else self._value.to(target)
            return SparseMatrix(self.pattern, value, self._transposed, self._formats)
        try:
            device = torch.empty(0, device=target).device
        except RuntimeError as error:
            formats = ", ".join(sorted(FORMATS))
            raise ValueError(
                f"target: need a format ({formats}), a dtype or a device that is present, got {target!r}"
            ) from error
        value = None if self._value is None else self._value.to(device)
        return SparseMatrix(self.pattern.to(device), value, self._transposed, self._formats)

    def traffic(self, op: str, F: int, dtype: torch.dtype = torch.float32) -> Traffic:
        """Bytes that one call of an operator with this matrix moves, in its format.

        Args:
            op: "spmm" (a sum) or "sddmm" (a dot product for every entry).
            F: columns of the dense operands.
            dtype: of the dense operands.

        Raises:
            ValueError: an operator that is not one of these, a negative F.
        """
        return traffic(self, op, F, dtype)

    def auto(self, F: int, uses: int = 100, w: float = 0.0, **options: Any) -> SparseMatrix:
        """The matrix in the formats that a learned model picks for it, one for each direction.

        The choice is that of `braidwork.selector`, which stands above this package and is loaded here on first use: see
        `selector.choose` for what is weighed. It is made once for a pattern and these arguments, and its cost, the
        conversions and a probe where the prediction is a close call, is inside this call.

        Args:
            F: columns of the dense operand of the products to come.
            uses: products that are to come, in each direction.
            w: weight of memory against time, in [0, 1].
            options: `dtype` of the dense operand; `values_change=True` where every product comes with other values;
                `backward=False` where no gradient to the dense operand will be asked for; `on_choice`, called with
                "forward" or "backward" and the name of the choice.

        Raises:
            ImportError: LightGBM is not installed.
            ValueError: an argument out of range.
        """
        return importlib.import_module("braidwork.selector").auto(self, F, uses, w, **options)

    def to_dense(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As a dense tensor [rows, columns], equal coordinates summed; fp32 by default if unweighted."""
        value = self._value
        if value is None:
            value = torch.ones(self.nnz, dtype=dtype or torch.float32, device=self.device)
        dense = torch.zeros(self.shape, dtype=value.dtype, device=self.device)
        dense = dense.index_put((self.row.long(), self.col.long()), value, accumulate=True)
        return dense if dtype is None else dense.to(dtype)

    def to_scipy(self) -> scipy.sparse.csr_array:
        """As a SciPy CSR array on the host; ones in fp32 if unweighted, bf16 values as fp32."""
        import scipy.sparse

        if self._value is None:
            data = np.ones(self.nnz, dtype=np.float32)
        else:
            value = self._value.detach().cpu()
            data = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        coordinates = (self.row.cpu().numpy(), self.col.cpu().numpy())
        return scipy.sparse.coo_array((data, coordinates), shape=self.shape).tocsr()

    def __repr__(self) -> str:
        kind = "unweighted" if self._value is None else str(self._value.dtype).removeprefix("torch.")
        rows, cols = self.shape
        grad = ", requires_grad" if self._value is not None and self._value.requires_grad else ""
        return (
            f"SparseMatrix({rows} x {cols}, nnz={self.nnz}, {kind}{grad}, {self.format}, "
            f"index={str(self.row.dtype).removeprefix('torch.')}, device={self.device})"
        )


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
