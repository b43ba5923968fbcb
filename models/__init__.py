"""Graph neural networks as thin modules over this project's kernels."""

from .backends import BACKENDS, Backend, get_backend
from .edges import Coo, coalesce, undirected, with_self_loops
from .gcn import GCN
from .layers import GCNLayer

__all__ = ["BACKENDS", "GCN", "Backend", "Coo", "GCNLayer", "coalesce", "get_backend", "undirected", "with_self_loops"]
