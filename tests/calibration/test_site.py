"""The calibration file: what it changes, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from layoutopt.calibration import Factors, Site, SiteErrors, load_site
from layoutopt.calibration.site import SCHEMA, refuse_other_file
from layoutopt.costmodel.efficiency import efficiency_of
from layoutopt.costmodel.software import software
from layoutopt.errors import InputError

SITE = Site(
    gpu="h100-sxm-80gb",
    framework="megatron-core",
    factors=Factors(1.1, 0.9, 0.95, 1.5, -0.2),
    runs=("a", "b", "c"),
    errors=SiteErrors(0.12, 0.03, 0.05, None),
    made="2026-11-29, layoutopt calibrate",
)


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(SITE.text(), encoding="utf-8")
    assert load_site(path) == SITE


def test_factors_of_one_change_nothing() -> None:
    profile, row = software("megatron-core"), efficiency_of("hopper")
    assert Factors().software(profile) == profile
    assert Factors().efficiency(row) == row


def test_a_shift_moves_overlap_into_what_is_left() -> None:
    """0.9 hidden: half of the exposed tenth more is 0.95; a fifth of the hidden less is 0.72."""
    profile = software("generic").model_copy(update={"overlap_fsdp": 0.9})
    assert Factors(overlap_shift=0.5).software(profile).overlap_fsdp == pytest.approx(0.95)
    assert Factors(overlap_shift=-0.2).software(profile).overlap_fsdp == pytest.approx(0.72)


def test_no_rate_passes_its_wire() -> None:
    row = Factors(memory_rate=3.0, scaleup_rate=3.0).efficiency(efficiency_of("hopper"))
    assert (row.memory, row.scaleup) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": "layoutopt.plan/1"}, "schema"),
        ({"gpu": None}, "gpu"),
        ({"framework": 7}, "framework"),
        ({"runs": "all"}, "runs"),
        ({"factors": None}, "factors"),
        ({"factors": {"compute_tme": 1.0}}, "compute_tme"),
        ({"factors": {"compute_time": "fast"}}, "factors.compute_time"),
        ({"factors": {"compute_time": True}}, "factors.compute_time"),
        ({"factors": {"compute_time": float("nan")}}, "factors.compute_time"),
        ({"factors": {"compute_time": 40.0}}, "factors.compute_time"),
        ({"factors": {"overlap_shift": 1.5}}, "factors.overlap_shift"),
        ({"errors": {"shipped_mean": 0.1}}, "errors.fitted_mean"),
        ({"facters": {}}, "facters"),
    ],
)
def test_a_wrong_file_is_refused_by_field(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(SITE.to_dict() | changes), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_site(path)
    assert caught.value.field == field
    assert "site.yaml" in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_site(tmp_path / "nothing.yaml")


def test_only_a_calibration_is_replaced(tmp_path: Path) -> None:
    old, other = tmp_path / "site.yaml", tmp_path / "notes.yaml"
    old.write_text(SITE.text(), encoding="utf-8")
    other.write_text("groceries: [milk]\n", encoding="utf-8")
    refuse_other_file(old)
    refuse_other_file(tmp_path / "new.yaml")
    for path in (other, tmp_path, tmp_path / "none" / "site.yaml"):
        with pytest.raises(InputError) as caught:
            refuse_other_file(path)
        assert caught.value.field == "out"
    assert SITE.to_dict()["schema"] == SCHEMA
