"""Codecs: values to fewer bits and back."""

from __future__ import annotations

from .quantize import dequantize_int8, quantize_int8

__all__ = ["dequantize_int8", "quantize_int8"]
