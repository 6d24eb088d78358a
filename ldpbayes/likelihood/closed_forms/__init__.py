"""Closed forms of p(z | θ): importing this registers them, each by `register_closed_form`. What is known of a base law
beyond its density is in `ldpbayes.laws`. A law without a closed form is served by the channel.
"""

from ldpbayes.likelihood.closed_forms import _counts, _numbers, categories  # noqa: F401
