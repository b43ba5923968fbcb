"""The one script to run where a GPU is: `python -m braidwork.kernels.gpu_check`.

It needs what such a machine has (torch, triton, numpy, scipy) and the package itself. It compares every kernel with an
fp64 reference computed on the CPU, forwards and backwards, and fails if a kernel was left out; then it times the
kernels against cuSPARSE and PyTorch on the same card, prints a short table and writes it as Markdown.

`--device cpu` rehearses the script through the CPU backend.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
import triton

from . import aot
from .codec import dequantize_int8, quantize_int8
from .codec import quantize as quantize_module
from .micro import elementwise, matmul, multiply_add_relu, softmax
from .micro import matmul as _matmul_function  # noqa: F401
from .sparse import SparseMatrix, spmm
from .testing import FLOAT_DTYPES, Coo, assert_close, graph_zoo
from .timing import Cost, compare, copy_bandwidth

WIDTHS = (1, 3, 16, 128)
