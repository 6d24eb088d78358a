"""Releases of real data: cryptographic randomness, whole-number arithmetic, and no data in results or errors."""

from ldpbayes.secure._release import release

__all__ = ["release"]
