"""What a layout needs and takes: bytes, seconds, dollars. Pure functions over frozen values."""
