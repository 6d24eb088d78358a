"""What is known of laws of records beyond NumPyro: tails, masses, kinks, statistics, sensitivities and functionals.

One file has all that is known of a law: its facts for the likelihood (`Family`), and its families for the bootstrap
(`ParametricFamily`), with their names on the command line. Users find both in `ldpbayes.likelihood` and
`ldpbayes.bootstrap`, and functionals as `ldpbayes.functionals`.
"""

from ldpbayes.laws import compound, counts, normal, numbers, smooth_density  # noqa: F401  # they register themselves
