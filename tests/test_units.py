"""Units: what people write, what they are shown, and that one is the inverse of the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt import units
from layoutopt.nearest import did_you_mean, nearest_names


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16384", 16_384),
        ("16k", 16_000),
        ("16Ki", 16_384),
        ("1M", 1_000_000),
        ("1Mi", 1_048_576),
        ("405B", 405_000_000_000),
        ("15T", 15_000_000_000_000),
        ("-8", -8),
        ("+8", 8),
        (" 8 ", 8),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert units.parse_count(text) == count


def test_a_fraction_of_tokens_is_exact() -> None:
    """15.6 * 10^12 as a float product would be right by luck; 4.35T would not."""
    assert units.parse_count("15.6T", allow_fraction=True) == 15_600_000_000_000
    assert units.parse_count("4.35T", allow_fraction=True) == 4_350_000_000_000


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "1.5", "1.5k", "1e5", "0x10", "1_000", "1,000", "١", "１", "nan", "inf"),
        *("--1", "1KB", "1 2", "9" * 5000, "1G", "1m"),
    ],
)
def test_no_count(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|k, M, B, T"):
        units.parse_count(text)


def test_a_product_that_is_no_whole_number_is_no_count() -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        units.parse_count("1.2345k", allow_fraction=True)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("400Gbps", 50e9),
        ("400gbps", 50e9),
        ("400 Gb/s", 50e9),
        ("400 Gbit/s", 50e9),
        ("50GB/s", 50e9),
        ("50 GBps", 50e9),
        ("0.05TB/s", 50e9),
        ("1GiB/s", 2.0**30),
        ("3.35TB/s", 3.35e12),
        ("100Mbps", 12.5e6),
    ],
)
def test_bandwidths(text: str, bytes_per_s: float) -> None:
    assert units.parse_bandwidth(text) == bytes_per_s


def test_a_bare_bandwidth_is_refused_with_the_units_that_would_do() -> None:
    with pytest.raises(ValueError, match=r"'400' has no unit.*400Gbps or 50GB/s"):
        units.parse_bandwidth("400")


@pytest.mark.parametrize("text", ["-1GB/s", "nan", "infGB/s", "1gb/s", "50GB", "1e9GB/s", "GB/s"])
def test_no_bandwidth(text: str) -> None:
    """``gb/s`` could be bits or bytes, so it is neither."""
    with pytest.raises(ValueError, match=r"bandwidth|unit"):
        units.parse_bandwidth(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2us", 2e-6),
        ("2 µs", 2e-6),
        ("500ms", 0.5),
        ("45s", 45.0),
        ("90min", 5400.0),
        ("3.1h", 11_160.0),
        ("30d", 2_592_000.0),
        ("30 days", 2_592_000.0),
        ("2w", 1_209_600.0),
        ("10ns", 1e-8),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds


def test_minutes_are_not_written_m() -> None:
    with pytest.raises(ValueError, match="min"):
        units.parse_seconds("90m")


def test_sizes_power_and_rates() -> None:
    assert units.parse_bytes("80GB") == 80 * 10**9
    assert units.parse_bytes("80GiB") == 80 * 2**30
    assert units.parse_bytes("81559MiB") == 81_559 * 2**20
    assert units.parse_power("10MW") == 10e6
    assert units.parse_power("700W") == 700
    assert units.parse_flops("989.5TFLOP/s") == 989.5e12
    assert units.parse_flops("2.25PFLOP/s") == 2.25e15


@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_power, units.parse_flops])
@pytest.mark.parametrize("text", ["80", "80 apples", "-1GB", "", "1" * 100 + "GB"])
def test_no_quantity(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2e-6, "2 us"),
        (0.0123, "12.3 ms"),
        (0.99999, "1 s"),
        (45.0, "45 s"),
        (5400.0, "90 min"),
        (11_160.0, "3.1 h"),
        (84.2 * units.DAY, "84.2 days"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


def test_sizes_for_people() -> None:
    assert units.format_bytes(81_559 * 2**20) == "79.6 GiB"
    assert units.format_bytes(13.8e12, binary=False) == "13.8 TB"
    assert units.format_bandwidth(450e9) == "450 GB/s"
    assert units.format_count(16_384) == "16,384"
    assert units.format_count(15_600_000_000_000) == "15.6T"
    assert units.format_count(999_960_000) == "1B"


@given(st.floats(min_value=1e-9, max_value=1e10))
def test_a_printed_duration_reads_back(seconds: float) -> None:
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=0.006)


@given(st.integers(min_value=0, max_value=10**17))
def test_a_printed_count_reads_back(count: int) -> None:
    text = units.format_count(count).replace(",", "")
    assert units.parse_count(text, allow_fraction=True) == pytest.approx(count, rel=6e-4)


@given(st.floats(min_value=1.0, max_value=1e15), st.booleans())
def test_a_printed_size_reads_back(size: float, binary: bool) -> None:
    text = units.format_bytes(size, binary=binary)
    assert abs(units.parse_bytes(text) - size) <= 0.006 * size + 1


@given(st.floats(min_value=1e3, max_value=1e15))
def test_a_printed_bandwidth_reads_back(rate: float) -> None:
    text = units.format_bandwidth(rate)
    assert units.parse_bandwidth(text) == pytest.approx(rate, rel=0.006)


@given(st.integers(min_value=1, max_value=10**6))
def test_bits_are_an_eighth_of_bytes(number: int) -> None:
    assert units.parse_bandwidth(f"{8 * number}Gbps") == units.parse_bandwidth(f"{number}GB/s")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (units.parse_count, units.parse_bandwidth, units.parse_seconds, units.parse_bytes):
        try:
            number = parse(text)
        except ValueError:
            continue
        assert number == number, "never NaN"


def test_nearest_names() -> None:
    known = ("h100-sxm-80gb", "h200-sxm-141gb", "mi300x")
    assert nearest_names("mi300", known)[0] == "mi300x"
    assert nearest_names("H100-SXM-80G", known)[0] == "h100-sxm-80gb"
    assert nearest_names("zzzz", known) == ()
    assert did_you_mean(("a", "b")) == "; nearest: a, b"
    assert did_you_mean(()) == ""
