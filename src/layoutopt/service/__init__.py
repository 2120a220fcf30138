"""The warm path: solve and estimate over HTTP. Needs the ``serve`` extra."""
