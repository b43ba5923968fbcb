"""Benchmarks run on memory as it comes."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def poisoned_buffers() -> None:
    """Replaces the fixture of all other tests, which would write every output of ours, and of ours alone, once more."""
