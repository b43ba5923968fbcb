"""Elementwise steps of a network in one pass over memory each."""

from __future__ import annotations

from .relu_dropout import drop_rate, relu_dropout

__all__ = ["drop_rate", "relu_dropout"]
