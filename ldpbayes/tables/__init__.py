"""Published tables with noise: what the cells were before it, and what several tables say together."""

from ldpbayes.data import NoisyTable

__all__ = ["NoisyTable"]
