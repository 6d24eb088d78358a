"""Numerical tools without any notion of privacy: special functions, laws of counts and radii, quadrature, rounding,
chunks.
"""
