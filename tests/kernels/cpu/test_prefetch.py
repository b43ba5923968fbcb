"""A volatile load that nobody reads asks for cache lines, and for nothing else."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what the CPU backend makes of it")


@triton.jit
def ahead_kernel(x_ptr, y_ptr, index_ptr, far, BLOCK: tl.constexpr):
    rows = tl.load(index_ptr + tl.arange(0, 2))[:, None]
    tl.load(x_ptr + rows * BLOCK + tl.arange(0, BLOCK)[None, :], volatile=True)
    tl.load(x_ptr + far + tl.arange(0, BLOCK) * 1000, mask=tl.arange(0, BLOCK) < 0, other=0.0, volatile=True)
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, volatile=True))


def test_one_prefetch_a_line_and_none_faults():
    x, y = torch.arange(256.0), torch.empty(32)
    far = 1 << 40  # not mapped
    compiled = ahead_kernel[(1,)](x, y, torch.tensor([1, 3]), far, BLOCK=32)
    assert torch.equal(y, x[:32])
    text = compiled.asm["llir"].split("define internal")[1]
    # Two rows of 128 bytes are two lines each; the elements that lie apart are one each.
    assert text.count("call void @llvm.prefetch") == 2 * 2 + 32
    assert text.count("load <32 x float>") == 1
