"""Graph neural networks as thin modules over this project's kernels."""

from .backends import BACKENDS, Backend, get_backend
from .edges import Coo, by_direction, coalesce, undirected, with_self_loops
from .network import EGC, GAT, GCN, MODELS, RGCN, FiLM, GraphSAGE, Network
from .sampling import Block, NeighbourSampler

__all__ = [
    "BACKENDS",
    "EGC",
    "GAT",
    "GCN",
    "MODELS",
    "RGCN",
    "Backend",
    "Block",
    "Coo",
    "FiLM",
    "GraphSAGE",
    "NeighbourSampler",
    "Network",
    "by_direction",
    "coalesce",
    "get_backend",
    "undirected",
    "with_self_loops",
]
