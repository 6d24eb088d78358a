"""What is known of laws of records beyond NumPyro, a file a law: for the likelihood and for the bootstrap."""

from ldpbayes.laws import compound, counts, numbers, smooth_density  # noqa: F401  # they register themselves
