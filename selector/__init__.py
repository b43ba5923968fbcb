"""From a sparse matrix to the storage format that makes its products quickest."""

from __future__ import annotations

from .choose import Choice, auto, choose
from .features import CANDIDATES, features
from .model import Model

__all__ = ["CANDIDATES", "Choice", "Model", "auto", "choose", "features"]
