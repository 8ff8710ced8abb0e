"""The ground that every other package stands on: geometry, structures, kernels, file formats, metrics, reports."""

__version__ = "0.1.0"
