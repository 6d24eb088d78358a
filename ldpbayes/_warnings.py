"""What all warnings of the package have in common."""

__all__ = ["LdpBayesWarning"]


class LdpBayesWarning(UserWarning):
    """Base of every warning of the package: a result that is given, and should not be trusted as it is."""
