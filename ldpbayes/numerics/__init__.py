"""Special functions, laws of counts and radii, quadrature, rounding, bits and chunks: nothing about privacy."""
