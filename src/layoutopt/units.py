"""Prefixes and unit conversions: the only file where they live.

GB is 10^9 bytes (links, disks), GiB is 2^30 bytes (memory).
"""

from __future__ import annotations

GB = 10**9
"""Bytes in a gigabyte, as vendors print links and disks."""
GIB = 2**30
"""Bytes in a gibibyte, as tools report memory."""
KIB = 2**10
"""Bytes in a kibibyte: the resolution in which memory is compared."""
GBIT = 10**9 // 8
"""Bytes in a gigabit."""
TERA = 10**12
"""FLOP/s in a TFLOP/s."""
DAY = 86_400
"""Seconds in a day."""
HOUR = 3_600
"""Seconds in an hour."""
