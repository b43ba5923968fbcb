"""The interpreter's process, shared by the tests of the backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import braidwork.kernels  # noqa: F401  registers the backend

from .harness import Interpreter


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    process = Interpreter(tmp_path_factory.mktemp("kernels"))
    yield process
    process.close()
