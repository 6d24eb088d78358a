"""Studies: many simulated releases, many fits; long ones checkpoint and resume."""

from ldpbayes.studies._coverage import Coverage, binomial_band, coverage

__all__ = ["Coverage", "binomial_band", "coverage"]
