"""Prefixes and unit conversions: the only file where they live.

GB is 10^9 bytes (links, disks), GiB is 2^30 bytes (memory). The parsers take what people write and
raise ValueError with a sentence; whoever calls them knows the option and adds its name. Fractions
are multiplied exactly, so 15.6T is 15,600,000,000,000 and not a float near it.
"""

from __future__ import annotations

import re
from fractions import Fraction

GB = 10**9
"""Bytes in a gigabyte, as vendors print links and disks."""
GIB = 2**30
"""Bytes in a gibibyte, as tools report memory."""
MIB = 2**20
"""Bytes in a mebibyte."""
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

_COUNT_SUFFIX = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
}
_PREFIX = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_SECONDS = {
    Fraction(1, 10**9): ("ns", "nanosecond", "nanoseconds"),
    Fraction(1, 10**6): ("us", "µs", "μs", "microsecond", "microseconds"),
    Fraction(1, 10**3): ("ms", "millisecond", "milliseconds"),
    Fraction(1): ("s", "sec", "second", "seconds"),
    Fraction(60): ("min", "minute", "minutes"),
    Fraction(HOUR): ("h", "hr", "hour", "hours"),
    Fraction(DAY): ("d", "day", "days"),
    Fraction(7 * DAY): ("w", "week", "weeks"),
}
_SECONDS_BY_NAME = {name: scale for scale, names in _SECONDS.items() for name in names}

_LONGEST = (
    40  # no legal number or unit is longer; a megabyte of digits is refused before arithmetic
)
_NUMBER = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([^\s0-9+.-][^\s]*(?:\s[^\s]+)?)?")
_BANDWIDTH = re.compile(r"([kKMGTP]i?)?(B|Bytes?|bytes?|b|bits?|Bits?)(/s|ps|/sec)")
_LOWER_BITS = re.compile(r"([kmgt])(bps|bit/s|bits/s|bitps)")
_BYTES = re.compile(r"([kKMGTPE]i?)?(B|Bytes?|bytes?)")
_FLOPS = re.compile(r"([kKMGTPE])?(FLOP/s|FLOPS|FLOPs|FLOPs/s|FLOPs/sec|flop/s|flops)")
_POWER = re.compile(r"([kKMG])?[Ww]")


def parse_count(text: str, *, allow_fraction: bool = False) -> int:
    """``"1M"`` to 1,000,000: digits, an optional sign, k/M/B/T (1000) or Ki/Mi (1024).

    With ``allow_fraction`` a fraction is taken where the product is a whole number (15.6T).
    """
    number, unit, has_fraction = _split(text, "a whole number such as 16384, 16k, 1M or 16Ki")
    if unit not in _COUNT_SUFFIX:
        raise ValueError(f"{_show(text)} ends in {unit!r}; a count ends in k, M, B, T, Ki or Mi")
    if has_fraction and not allow_fraction:
        raise ValueError(f"{_show(text)} has a fraction; a whole number is needed")
    product = number * _COUNT_SUFFIX[unit]
    if product.denominator != 1:
        raise ValueError(f"{_show(text)} is not a whole number")
    return product.numerator


def parse_bandwidth(text: str) -> float:
    """``"400Gbps"``, ``"50GB/s"``, ``"400 Gbit/s"``, ``"1TiB/s"`` to bytes per second."""
    number, unit = _quantity(text, "a bandwidth with its unit, such as 400Gbps or 50GB/s")
    if match := _LOWER_BITS.fullmatch(unit):
        return float(number * _PREFIX[match[1].upper()] / 8)
    match = _BANDWIDTH.fullmatch(unit)
    if match is None:
        raise ValueError(_unit_message(text, unit, "bits: Gbps, Gbit/s; bytes: GB/s, TB/s, GiB/s"))
    bits = 8 if match[2] == "b" or match[2].lower().startswith("bit") else 1
    return float(number * _PREFIX[match[1] or ""] / bits)


def parse_bytes(text: str) -> int:
    """``"80GB"`` (10^9) or ``"80GiB"`` (2^30) to bytes, rounded down to a whole byte."""
    number, unit = _quantity(text, "a size with its unit, such as 80GB or 80GiB")
    return int(number * _scale(_BYTES, text, unit, "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"))


def parse_seconds(text: str) -> float:
    """``"2us"``, ``"500ms"``, ``"90min"``, ``"3.1h"``, ``"30d"`` to seconds."""
    number, unit = _quantity(text, "a duration with its unit, such as 2us, 90min or 30d")
    if unit not in _SECONDS_BY_NAME:
        raise ValueError(_unit_message(text, unit, "ns, us, ms, s, min, h, d, w"))
    return float(number * _SECONDS_BY_NAME[unit])


def parse_power(text: str) -> float:
    """``"10MW"``, ``"700W"`` to watts."""
    number, unit = _quantity(text, "a power with its unit, such as 700W or 10MW")
    return float(number * _scale(_POWER, text, unit, "W, kW, MW, GW"))


def parse_flops(text: str) -> float:
    """``"989.5TFLOP/s"`` to floating-point operations per second."""
    number, unit = _quantity(text, "a rate with its unit, such as 989.5TFLOP/s")
    return float(number * _scale(_FLOPS, text, unit, "GFLOP/s, TFLOP/s, PFLOP/s"))


def format_count(number: int) -> str:
    """``16384`` to ``"16,384"``; from a million up four significant digits: ``"15.6T"``."""
    if abs(number) < 10**6:
        return f"{number:,}"
    for scale, suffix in ((10**6, "M"), (10**9, "B"), (10**12, "T")):
        # 999.96M would print as 1000M: the next suffix takes over where rounding reaches it.
        if abs(number) < scale * 999.95 or suffix == "T":
            return f"{_digits(number / scale)}{suffix}"
    raise AssertionError("unreachable")


def format_bytes(number: float, *, binary: bool = True) -> str:
    """Memory as ``"79.6 GiB"``; ``binary=False``: links, disks, checkpoints as ``"13.8 TB"``."""
    base, units = (1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if not binary:
        base, units = (1000, ("B", "kB", "MB", "GB", "TB", "PB"))
    size = float(number)
    for unit in units:
        if abs(size) < base * 0.9995 or unit == units[-1]:
            return f"{_digits(size, 3)} {unit}"
        size /= base
    raise AssertionError("unreachable")


def format_bandwidth(bytes_per_s: float) -> str:
    """``4.5e11`` to ``"450 GB/s"``."""
    return f"{format_bytes(bytes_per_s, binary=False)}/s"


def format_seconds(seconds: float) -> str:
    """``0.0123`` to ``"12.3 ms"``; from two minutes up in min, from two hours in h, then days."""
    size = abs(seconds)
    for limit, scale, unit in (
        (1e-6, 1e-9, "ns"),
        (1e-3, 1e-6, "us"),
        (1.0, 1e-3, "ms"),
        (120.0, 1.0, "s"),
        (2.0 * HOUR, 60.0, "min"),
        (2.0 * DAY, float(HOUR), "h"),
    ):
        if size < limit * 0.9995 or (unit == "ns" and size == 0.0):
            return "0 s" if size == 0.0 else f"{_digits(seconds / scale, 3)} {unit}"
    return f"{_digits(seconds / DAY, 3)} days"


def _split(text: str, wanted: str) -> tuple[Fraction, str, bool]:
    """Number, unit, and whether the number was written with a fraction."""
    if not isinstance(text, str):
        raise ValueError(f"{_show(text)} is not {wanted}")
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{_show(text)} is not {wanted}")
    number = Fraction(match[2] if match[2][0] != "." else "0" + match[2])
    return (-number if match[1] == "-" else number), match[3] or "", "." in match[2]


def _quantity(text: str, wanted: str) -> tuple[Fraction, str]:
    number, unit, _ = _split(text, wanted)
    if number < 0:
        raise ValueError(f"{_show(text)} is negative; {wanted} is needed")
    if not unit:
        raise ValueError(f"{_show(text)} has no unit; {wanted} is needed")
    return number, unit


def _scale(pattern: re.Pattern[str], text: str, unit: str, known: str) -> int:
    match = pattern.fullmatch(unit)
    if match is None:
        raise ValueError(_unit_message(text, unit, known))
    return _PREFIX[match[1] or ""]


def _unit_message(text: str, unit: str, known: str) -> str:
    return f"{_show(text)} has the unit {unit!r}, which is not one of {known}"


def _show(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST + 2 else shown[:_LONGEST] + "..."


def _digits(value: float, significant: int = 4) -> str:
    """Plain decimal notation with that many significant digits and no trailing zeros."""
    rounded = float(f"{value:.{significant}g}")
    text = f"{rounded:.{significant + 9}f}".rstrip("0").rstrip(".")
    return text
