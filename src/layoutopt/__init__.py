"""layoutopt: finds, and proves, the fastest layout of a training run on a GPU cluster."""

from __future__ import annotations

__version__ = "0.1.0"
