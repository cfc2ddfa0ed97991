"""The version of the package, read by the build."""

__all__ = ["__version__"]

__version__ = "0.1.0"
