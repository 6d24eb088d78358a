"""Safe release of real data: cryptographic randomness, whole-number arithmetic, and errors that show no data."""

from ldpbayes.secure._release import release

__all__ = ["release"]
