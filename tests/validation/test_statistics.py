"""Statistics against figures worked by hand."""

from __future__ import annotations

import pytest

from layoutopt.validation.statistics import mean, median, quantile, ranks, spearman


def test_empty_lists_have_no_statistics() -> None:
    assert mean([]) is None
    assert median([]) is None
    assert quantile([], 0.9) is None


def test_mean_and_median() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert median([6.0, 1.0, 2.0]) == 2.0
    assert median([1.0, 2.0, 3.0, 10.0]) == 2.5


def test_ninetieth_percentile_lies_between_neighbours() -> None:
    """0.9 of the way from the 1st to the 3rd value is 0.8 of the way from 2nd to 3rd."""
    assert quantile([10.0, 20.0, 30.0], 0.9) == pytest.approx(28.0)
    assert quantile([5.0], 0.9) == 5.0


def test_equal_values_share_their_rank() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation_of_the_textbook() -> None:
    """1 - 6 * sum(d^2) / (n (n^2 - 1)) with d = 0, 1, -1, 0: 1 - 12 / 60 = 0.8."""
    assert spearman([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)


def test_rank_correlation_ends() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 90.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_a_constant_side_has_no_correlation() -> None:
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert spearman([1.0], [1.0]) is None
