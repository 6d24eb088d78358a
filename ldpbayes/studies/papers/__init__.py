"""Reproductions of published tables and figures: one module a paper, named by its authors."""
