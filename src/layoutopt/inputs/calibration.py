"""``--calibration``: a site's own figures, for the GPU and framework that they were made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from layoutopt.costmodel.job import Job
from layoutopt.errors import InputError
from layoutopt.inputs.filled import Notebook

if TYPE_CHECKING:
    from layoutopt.calibration import Site


def read_site(options: Mapping[str, Any]) -> Site | None:
    """The calibration that ``options`` name; None without one."""
    given = options.get("calibration")
    if given is None:
        return None
    # Late: most questions bring no calibration.
    from layoutopt.calibration.site import Site, load_site

    return given if isinstance(given, Site) else load_site(given)


def with_defaults_of(
    site: Site | None, options: Mapping[str, Any], notebook: Notebook
) -> Mapping[str, Any]:
    """``options`` with the calibration's GPU and framework where no others were given."""
    if site is None:
        return options
    reason = "what the calibration is for"
    added: dict[str, Any] = {}
    if options.get("gpu") is None and options.get("cluster") is None:
        added["gpu"] = site.gpu
    if options.get("framework") is None:
        added["framework"] = site.framework
    for option, value in added.items():
        notebook.fill(option, value, reason)
    return {**options, **added}


def calibrated(job: Job, site: Site | None) -> Job:
    """``job`` with the site's figures; raises InputError for another GPU or framework."""
    if site is None:
        return job
    for field, mine, its in (
        ("gpu", job.cluster.gpu.name, site.gpu),
        ("framework", job.software.name, site.framework),
    ):
        if mine != its:
            raise InputError(
                f"--calibration is for {field} {its}, but {field} is {mine}",
                field=field,
                value=mine,
                nearest=(its,),
            )
    return site.apply(job)
