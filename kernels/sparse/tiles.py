"""Tile shapes that were measured, by device, format and number of columns. Where none were, `config` goes by rules.

A table is JSON: {format: {columns of x: entry}}, an entry {"columns": ..., "lanes": ..., "ahead": ...} on a CPU and
{"columns": ..., "warps": ...} on a GPU. Columns of x stand for all up to them, from the next smaller power of two on.
The project ships tables in `kernels/configs`; `make tune` measures one for the device at hand and puts it into the
cache folder, where it goes before the shipped one.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import triton

from ..cache import cache_dir

FIELDS = ("columns", "lanes", "ahead", "warps")
"""What an entry may say: columns of a tile at most; rows side by side; entries that rows of x are asked for ahead of
time; warps of a program."""

WIDEST = 512

Table = dict[str, dict[str, dict[str, int]]]

_trial: dict[tuple[str, int], Mapping[str, int]] = {}
_dependents: list[Callable[[], None]] = []


def device_name(backend: str) -> str | None:
    """Whose table is meant: "cpu-avx512", "cpu-avx2", "sm_90", "gfx942", ...; None where no such device is present."""
    if backend == "cpu":
        return f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    if backend == "hip":
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def own_path(device: str) -> Path:
    """Where `make tune` puts the table of a device."""
    return cache_dir() / f"sparse-{device}.json"


def width_class(F: int) -> int:
    """The number of columns under which F is found."""
    return min(triton.next_power_of_2(F), WIDEST)


def check(table: Any, source: str) -> Table:
    """The table, if it is one. Raises ValueError that names `source`: it is not, or it has an entry out of range."""
    if not isinstance(table, dict):
        raise ValueError(f"{source}: need an object of formats")
    for format, widths in table.items():
        for width, entry in widths.items() if isinstance(widths, dict) else ((widths, None),):
            if not isinstance(entry, dict) or not str(width).isdecimal():
                raise ValueError(f"{source}: {format}: need objects by number of columns, got {width!r}")
            for name, value in entry.items():
                power = type(value) is int and value >= 0 and (name == "ahead" or value & (value - 1) == 0 < value)
                if name not in FIELDS or not power:
                    raise ValueError(f"{source}: {format}, {width} columns: {name} cannot be {value!r}")
    return table


@functools.cache
def _table(backend: str) -> Table:
    device = device_name(backend)
    if device is None:
        return {}
    own = own_path(device)
    if own.is_file():
        try:
            return check(json.loads(own.read_text()), str(own))
        except json.JSONDecodeError as error:
            raise ValueError(f"{own}: not JSON ({error}); delete it or run make tune") from None
    shipped = files("braidwork.kernels") / "configs" / f"sparse-{device}.json"
    return check(json.loads(shipped.read_text()), shipped.name) if shipped.is_file() else {}


def tuned(format: str, F: int, backend: str) -> Mapping[str, int]:
    """The entry for products of F columns in a format, {} if there is none."""
    width = width_class(F)
    if (format, width) in _trial:
        return _trial[format, width]
    return _table(backend).get(format, {}).get(str(width), {})


def depends(pick: Any) -> Any:
    """Decorator of a cached function that asks `tuned`: its cache is cleared when a trial begins or ends."""
    _dependents.append(pick.cache_clear)
    return pick


def reload() -> None:
    """Read the tables again."""
    _table.cache_clear()
    for clear in _dependents:
        clear()


@contextlib.contextmanager
def trial(format: str, F: int, entry: Mapping[str, int]) -> Iterator[None]:
    """Let products of F columns in a format run with an entry, whatever the table says."""
    key = format, width_class(F)
    _trial[key] = entry
    for clear in _dependents:
        clear()
    try:
        yield
    finally:
        del _trial[key]
        for clear in _dependents:
            clear()
