"""Numerical tools without any notion of privacy: special functions, laws, quadrature, minimisation, chunks."""
