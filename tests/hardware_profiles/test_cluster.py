"""Clusters: by default, of a cloud machine, and the sizes that must agree."""

from __future__ import annotations

import pytest

from layoutopt.errors import ProfileError
from layoutopt.hardware_profiles import catalog
from layoutopt.hardware_profiles.cluster import (
    cluster_for,
    default_cluster,
    instance_cluster,
    with_network,
    with_nodes,
)
from layoutopt.hardware_profiles.defaults import defaults, latency_key
from layoutopt.hardware_profiles.loading import load_cluster
from layoutopt.hardware_profiles.schema import MAX_GPUS, Cluster


def shape(cluster: Cluster) -> list[tuple[str, int, float]]:
    """(name, GPUs, GB/s) of each level."""
    return [
        (level.name, level.gpus, level.bytes_per_s_per_gpu_one_way / 1e9)
        for level in cluster.levels
    ]


def test_the_usual_h100_cluster() -> None:
    cluster = default_cluster(catalog.load_gpu("h100-sxm-80gb"), 16_384)
    assert (cluster.nodes, cluster.gpus_per_node) == (2048, 8)
    assert shape(cluster) == [("nvlink", 8, 450.0), ("network", 16_384, 50.0)]
    assert cluster.levels[0].latency_s < cluster.levels[1].latency_s
    assert cluster.usd_per_gpu_hour == 3.99
    assert cluster.watts_per_gpu == 10_200 / 8


def test_a_count_that_fills_no_node_gets_one_more_node() -> None:
    cluster = default_cluster(catalog.load_gpu("h100-sxm-80gb"), 100)
    assert cluster.nodes == 13
    assert cluster.levels[-1].gpus == 104


def test_fewer_gpus_than_a_rack_keep_the_rack() -> None:
    cluster = default_cluster(catalog.load_gpu("gb200-nvl72"), 16)
    assert shape(cluster) == [("nvlink", 72, 900.0), ("network", 72, 50.0)]


def test_without_a_count_the_cluster_is_open() -> None:
    cluster = default_cluster(catalog.load_gpu("h100-sxm-80gb"))
    assert cluster.nodes is None
    assert cluster.levels[-1].gpus == MAX_GPUS


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_gpu_has_a_usual_cluster(name: str) -> None:
    cluster = default_cluster(catalog.load_gpu(name), 64)
    sizes = [level.gpus for level in cluster.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 64
    rates = [level.usable_bytes_per_s for level in cluster.levels]
    assert rates == sorted(rates, reverse=True)
    assert all(one.reason and one.value for one in cluster.filled)
    options = {one.option for one in cluster.filled}
    assert {"levels.network", "storage.write", "failures_per_gpu_hour"} <= options
    assert ("watts_per_gpu" in options) == (cluster.watts_per_gpu is not None)


def test_cards_in_bridged_pairs_have_a_level_for_the_pair() -> None:
    cluster = default_cluster(catalog.load_gpu("a100-pcie-80gb"), 16)
    assert shape(cluster)[:2] == [("bridge", 2, 300.0), ("pcie", 8, 31.0)]


def test_cards_without_a_link_share_the_servers_bus() -> None:
    cluster = default_cluster(catalog.load_gpu("l40s"), 16)
    assert shape(cluster)[0] == ("pcie", 8, 31.0)


def test_records_bring_their_own_node_and_network() -> None:
    gpu = catalog.load_gpu("a100-sxm-80gb")
    cluster = cluster_for(gpu, gpus_per_node=8, nvlink_domain=8, internode_bytes_per_s=12.5e9)
    assert shape(cluster) == [("nvlink", 8, 300.0), ("network", MAX_GPUS, 12.5)]
    assert cluster_for(gpu).levels[-1].bytes_per_s_per_gpu_one_way == 25e9


def test_a_domain_does_not_leave_a_server_unless_the_link_does() -> None:
    h100, gb200 = catalog.load_gpu("h100-sxm-80gb"), catalog.load_gpu("gb200-nvl72")
    assert cluster_for(h100, gpus_per_node=1, nvlink_domain=8).levels[0].gpus == 1
    assert cluster_for(gb200, gpus_per_node=4, nvlink_domain=72).levels[0].gpus == 72


def test_another_network_leaves_the_inner_levels_alone() -> None:
    cluster = default_cluster(catalog.load_gpu("h100-sxm-80gb"), 64)
    assert shape(with_network(cluster, 3.125e9)) == [("nvlink", 8, 450.0), ("network", 64, 3.125)]
    rack = default_cluster(catalog.load_gpu("gb200-nvl72"), 144)
    assert shape(with_network(rack, 1e9)) == [("nvlink", 72, 900.0), ("network", 144, 1.0)]


def test_a_cloud_machine_is_a_cluster() -> None:
    cluster = load_cluster("p4d.24xlarge")
    assert cluster.gpu.name == "a100-sxm-40gb"
    assert shape(cluster) == [("nvlink", 8, 300.0), ("network", MAX_GPUS, 400 / 8 / 8)]
    assert cluster.usd_per_gpu_hour == 2.7447
    assert "usd_per_gpu_hour" not in {one.option for one in cluster.filled}
    assert "levels.network" not in {one.option for one in cluster.filled}


def test_a_bare_price_is_the_usual_server_at_that_price() -> None:
    cluster = load_cluster("hyperstack-h100-sxm-80gb")
    assert cluster.gpus_per_node == 8
    assert cluster.usd_per_gpu_hour == 3.2


@pytest.mark.parametrize("name", catalog.instance_names())
def test_every_machine_is_a_cluster(name: str) -> None:
    cluster = with_nodes(instance_cluster(catalog.load_instance(name)), 4)
    assert cluster.levels[-1].gpus >= 4
    assert cluster.gpu.name == catalog.load_instance(name).gpu


def test_a_gpu_name_is_its_usual_cluster() -> None:
    assert load_cluster("h100") == default_cluster(catalog.load_gpu("h100-sxm-80gb"))


def test_an_unknown_cluster_gets_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"p5\.48xlarge") as caught:
        load_cluster("p5.49xlarge")
    assert caught.value.field == "cluster"


@pytest.mark.parametrize("text", ["", "no such", "x" * 100_000, "a\0b", "😀"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        load_cluster(text)


def test_the_defaults_are_the_published_figures() -> None:
    """419 stops in 54 days on 16,384 GPUs; 273 GB/s on Selene; 20 us in 14 steps on NVLink."""
    known = defaults()
    assert known.failures_per_gpu_hour == pytest.approx(419 / (54 * 24 * 16_384), rel=1e-6)
    assert known.storage.write_bytes_per_s == 273e9
    assert known.latency_s["NVLink"] == pytest.approx(20e-6 / 14, rel=0.03)
    assert all(figure.source for figure in known.figures.values())


def test_each_shipped_link_has_its_own_latency() -> None:
    for name in catalog.gpu_names():
        assert latency_key(catalog.load_gpu(name).link_kind) not in ("other", "network")


def test_a_gpu_name_means_its_usual_cluster_not_an_offer_that_sells_it() -> None:
    named = load_cluster("h100-sxm-80gb")
    assert named == default_cluster(catalog.load_gpu("h100-sxm-80gb"))
