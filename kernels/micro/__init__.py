"""Small dense kernels by which the compiler is judged: each has a well-known bound and a well-tuned peer in
PyTorch."""

from __future__ import annotations

from .elementwise import multiply_add_relu
from .matmul import matmul
from .softmax import softmax

__all__ = ["matmul", "multiply_add_relu", "softmax"]
