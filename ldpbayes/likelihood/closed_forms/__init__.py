"""Closed forms of p(z | θ) by base law. Importing this registers them.

Each file teaches one kind of base law: its closed forms (`register_closed_form`) and its `Family` (masses, tails, cdf,
kinks). The channel alone serves a law without a file here.
"""

from ldpbayes.likelihood.closed_forms import _counts, _laplace, _normal, _small_families, categories  # noqa: F401
