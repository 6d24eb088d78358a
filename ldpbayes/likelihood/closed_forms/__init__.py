"""Closed forms of p(z | θ): importing this registers them. Each file teaches one kind of base law: its closed forms
(`register_closed_form`) and its `Family` (masses, tails, cdf, kinks). Without one a law is served by the channel.
"""

from ldpbayes.likelihood.closed_forms import _counts, _laplace, _normal, _small_families, categories  # noqa: F401
