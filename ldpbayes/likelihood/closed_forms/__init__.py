"""Closed forms of p(z | θ), which register themselves; the channel serves other laws."""

from ldpbayes.likelihood.closed_forms import _counts, _numbers, categories  # noqa: F401
