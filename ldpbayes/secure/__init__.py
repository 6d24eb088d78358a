"""Safe release of real data: cryptographic randomness, exact arithmetic, and error messages that show no data."""

from ldpbayes.secure._release import release

__all__ = ["release"]
