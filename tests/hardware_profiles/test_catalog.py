"""The shipped files: all load, every figure has a source, and people's names find them."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles import catalog, reading
from layoutopt.hardware_profiles.gpu_file import read_gpu
from layoutopt.hardware_profiles.reading import Fields
from layoutopt.hardware_profiles.schema import ARCHITECTURES


def test_everything_that_should_ship_ships() -> None:
    assert len(catalog.gpu_names()) == 33
    assert len(catalog.instance_names()) == 38


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_figure_of_a_gpu_has_a_source(name: str) -> None:
    facts = catalog.gpu_facts(name)
    assert facts.gpu.name == name
    assert facts.gpu.architecture in ARCHITECTURES
    assert len(facts.figures) >= 6
    for figure in facts.figures:
        assert figure.source, figure.field
        assert len(figure.source) > 10, figure.field
        assert figure.number > 0
    for curve in facts.curves:
        assert curve.bus_bytes_per_s
        assert curve.source


@pytest.mark.parametrize("name", catalog.instance_names())
def test_every_figure_of_a_machine_has_a_source(name: str) -> None:
    instance = catalog.load_instance(name)
    assert instance.name == name
    assert instance.gpu in catalog.gpu_names()
    assert all(figure.source for figure in instance.figures)
    assert instance.usd_per_gpu_hour is not None or instance.node_bytes_per_s_one_way is not None
    if instance.usd_per_hour is not None and instance.usd_per_gpu_hour is not None:
        per_node = instance.usd_per_gpu_hour * instance.gpus_per_node
        assert instance.usd_per_hour == pytest.approx(per_node, rel=1e-4)


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_the_price_of_a_gpu_is_the_median_of_its_offers(name: str) -> None:
    machines = [catalog.load_instance(one) for one in catalog.instance_names()]
    offers = [m.usd_per_gpu_hour for m in machines if m.gpu == name]
    prices = [price for price in offers if price is not None]
    price = catalog.load_gpu(name).usd_per_gpu_hour
    assert price == (pytest.approx(statistics.median(prices)) if prices else None)


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_figures_are_of_a_plausible_size(name: str) -> None:
    """A slipped prefix (GB for TB, bits for bytes) is a factor of 8 or 1000."""
    gpu = catalog.load_gpu(name)
    assert 14 * 2**30 < gpu.memory_bytes < 400 * 2**30
    assert 0.5e12 < gpu.memory_bytes_per_s < 10e12
    assert 100e12 < gpu.peak("bf16") < 5000e12
    assert gpu.peak("bf16") <= gpu.peak("fp8") <= gpu.peak("nvfp4")
    assert 30e9 < gpu.link_bytes_per_s_one_way < 1000e9
    assert gpu.scaleout_bytes_per_s_one_way is None or gpu.scaleout_bytes_per_s_one_way <= 100e9
    assert gpu.watts is None or 200 < gpu.watts < 1500
    assert gpu.node_watts_per_gpu is None or gpu.node_watts_per_gpu > (gpu.watts or 0)


def test_h100_as_published() -> None:
    """989.5 dense is half of the 1,979 that the datasheet prints with sparsity."""
    gpu = catalog.load_gpu("h100-sxm-80gb")
    assert gpu.peak("bf16") == 989.5e12 == 1979e12 / 2
    assert gpu.peak("fp8") == gpu.peak("mxfp8") == 1979e12
    assert gpu.memory_bytes == 81_559 * 2**20
    assert gpu.link_bytes_per_s_one_way == 450e9
    assert gpu.scaleout_bytes_per_s_one_way == 400e9 / 8
    assert gpu.link_domain_gpus == gpu.gpus_per_node == 8
    assert not gpu.rack_scale
    curve = catalog.gpu_facts("h100-sxm-80gb").curves[0]
    assert (2**20, 67.04e9) in curve.bus_bytes_per_s
    assert (8, 13.67e-6) in [(size, round(seconds, 9)) for size, seconds in curve.seconds]


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_a_rack_of_72(name: str) -> None:
    gpu = catalog.load_gpu(name)
    assert (gpu.gpus_per_node, gpu.link_domain_gpus, gpu.rack_scale) == (4, 72, True)


def test_volta_has_no_bf16() -> None:
    gpu = catalog.load_gpu("v100-sxm2-32gb")
    assert set(gpu.peak_flops_per_s) == {"fp16", "fp32"}
    assert gpu.peak("bf16") == 125e12


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H100 SXM5 80 GB", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("h100 96gb", "h100-sxm-96gb-hbm2e"),
        ("H100 NVL", "h100-nvl-94gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("nvidia-a100-80gb", "a100-sxm-80gb"),
        ("nvidia-tesla-a100", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("H200", "h200-sxm-141gb"),
        ("GB200", "gb200-nvl72"),
        ("b200", "b200-sxm-180gb"),
        ("B300", "b300-sxm-288gb"),
        ("MI300X", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("gaudi 2", "gaudi2"),
        ("v5e", "tpu-v5e"),
        ("TPU v5p", "tpu-v5p"),
        ("tpu-v5-lite-podslice", "tpu-v5e"),
        ("trillium", "tpu-v6e"),
        ("rtx4090", "rtx-4090"),
        ("L40S", "l40s"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    gpu, note = catalog.find_gpu(text)
    assert gpu.name == name
    assert note is None


@pytest.mark.parametrize(
    ("text", "taken", "other"),
    [
        ("H100", "h100-sxm-80gb", "h100-pcie-80gb"),
        ("h100 sxm", "h100-sxm-80gb", "h100-sxm-96gb-hbm2e"),
        ("a100", "a100-sxm-80gb", "a100-sxm-40gb"),
        ("A100 40GB", "a100-sxm-40gb", "a100-pcie-40gb"),
        ("v100", "v100-sxm2-32gb", "v100-sxm2-16gb"),
    ],
)
def test_an_ambiguous_name_says_which_was_taken(text: str, taken: str, other: str) -> None:
    gpu, note = catalog.find_gpu(text)
    assert gpu.name == taken
    assert note is not None
    assert other in note
    assert f"{taken} was taken" in note


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_every_name_finds_itself(name: str) -> None:
    assert catalog.find_gpu(name.upper().replace("-", " ")) == (catalog.load_gpu(name), None)


@pytest.mark.parametrize("text", ["gh100", "h1000", "", " ", "nvidia", "sxm", "80gb", "tpu", "\0"])
def test_an_unknown_name_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        catalog.find_gpu(text)
    assert caught.value.field == "gpu"
    assert set(caught.value.nearest) <= set(catalog.gpu_names())


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match=r"nearest: .*h100"):
        catalog.find_gpu("h1000-sxm-80gb")
    with pytest.raises(InputError, match="l40s"):
        catalog.load_gpu("l40")
    with pytest.raises(InputError, match=r"p5\.48xlarge"):
        catalog.load_instance("p5.47xlarge")


def test_an_absurdly_long_name_is_refused_quickly() -> None:
    with pytest.raises(InputError) as caught:
        catalog.find_gpu("h" * 10**6)
    assert len(caught.value.message) < 300


def test_machines_with_and_without_provider() -> None:
    assert catalog.load_instance("p5.48xlarge") == catalog.load_instance("AWS p5.48xlarge")
    assert catalog.load_instance("Standard_ND96isr_H100_v5").provider == "azure"


def test_a_shipped_figure_without_a_source_does_not_load() -> None:
    text = (catalog.DATA / "gpus" / "l40s.yaml").read_text(encoding="utf-8")
    for broken, message in (
        (text.replace("power: {value: 350W, source: ml-engineering}", "power: 350W"), "no source"),
        (text.replace("350W, source: ml-engineering", "350W"), "source is missing"),
        (text.replace("350W, source: ml-engineering", "350W, source: nowhere"), "under sources"),
    ):
        data = reading.parse_yaml(broken, "l40s.yaml")
        with pytest.raises(ProfileError, match=message) as caught:
            read_gpu(Fields(data, "l40s.yaml", must_have_source=True))
        assert caught.value.field is not None
        assert caught.value.field.startswith("power")


def test_finding_one_gpu_reads_one_file() -> None:
    """33 files would take a quarter of the time that ``--version`` may take."""
    code = (
        "from layoutopt.hardware_profiles import catalog\n"
        "catalog.find_gpu('h100')\n"
        "print(catalog.gpu_facts.cache_info().currsize)\n"
        "import sys; print(any(m in sys.modules for m in ('numpy', 'scipy', 'ortools', 'click')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
