"""Where files that outlive a run are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$BRAIDWORK_CACHE, else $XDG_CACHE_HOME/braidwork, else ~/.cache/braidwork."""
    if own := os.environ.get("BRAIDWORK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "braidwork"
