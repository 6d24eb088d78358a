"""Special functions, quadrature, rounding, products of bits, chunks and the radial law: nothing about privacy."""
