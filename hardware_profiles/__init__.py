"""What machines can do: GPUs, nodes, links, storage, failure rates, each figure with its source."""
