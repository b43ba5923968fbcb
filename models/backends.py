"""What runs a model: this project's kernels, `torch.sparse`, or PyTorch Geometric.

A backend turns a graph's edges into the operators that layers call, and its sparse features into an input that a layer
multiplies by its weight. `braidwork` fuses normalisations into its SpMM and stores no normalised matrix.
`torch_autograd` is `torch.sparse` as one would write it: a normalised CSR matrix and `torch.sparse.mm`, whose backward
transposes the matrix again in every step. `torch` is the strongest use known here: the same with the transpose built
once and kept. `pyg` is the layers of PyTorch Geometric on an edge index.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from . import layers, pyg
from .fused import FusedGraph, SparseMatrixInput
from .protocols import EdgeIndex, SparseInput
from .torch_sparse import TorchAutogradGraph, TorchAutogradMatrix, TorchGraph, TorchMatrix

_Features = TypeVar("_Features")

_LAYERS: Mapping[str, type[nn.Module]] = {
    "gcn": layers.GCNLayer,
    "sage": layers.SAGELayer,
    "gat": layers.GATLayer,
    "rgcn": layers.RGCNLayer,
    "film": layers.FiLMLayer,
    "egc": layers.EGCLayer,
}
_PYG_LAYERS: Mapping[str, type[nn.Module]] = {
    "gcn": pyg.PyGGCN,
    "sage": pyg.PyGSAGE,
    "gat": pyg.PyGGAT,
    "rgcn": pyg.PyGRGCN,
    "film": pyg.PyGFiLM,
    "egc": pyg.PyGEGC,
}


@dataclass(frozen=True)
class Backend:
    """One way to run the models.

    Attributes:
        graph: edges and relations -> what layers call; of a backend that `has_formats`, format and uses as well, as
            `features` too (see `Stored`).
        features: dense or sparse features -> what layers multiply.
        layers: the convolution of every model, by the model's name.
        requires: the package that it needs.
    """

    name: str
    label: str
    graph: Callable[..., object]
    features: Callable[..., Tensor | SparseInput]
    layers: Mapping[str, type[nn.Module]]
    requires: str | None = None
    has_formats: bool = False

    @property
    def available(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None


def _or_dense(from_coo: Callable[..., _Features]) -> Callable[..., Tensor | _Features]:
    return lambda features, *stored: features if isinstance(features, Tensor) else from_coo(features, *stored)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            "braidwork", "braidwork", FusedGraph, _or_dense(SparseMatrixInput.from_coo), _LAYERS, has_formats=True
        ),
        Backend("torch", "torch.sparse (tuned)", TorchGraph, _or_dense(TorchMatrix), _LAYERS),
        Backend("torch_autograd", "torch.sparse", TorchAutogradGraph, _or_dense(TorchAutogradMatrix), _LAYERS),
        Backend("pyg", "PyG", EdgeIndex.from_coo, _or_dense(pyg.dense_features), _PYG_LAYERS, "torch_geometric"),
    )
}


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        ValueError: unknown name, or a package that it needs is not installed.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend: unknown {name!r}; choose one of {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    if not backend.available:
        raise ValueError(f"backend: {name!r} needs the package {backend.requires}, which is not installed")
    return backend
