"""Clusters from files: what a user writes, and everything a user gets wrong."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.errors import InputError, ProfileError
from layoutopt.hardware_profiles import catalog
from layoutopt.hardware_profiles.cluster_file import read_cluster
from layoutopt.hardware_profiles.loading import load_cluster
from layoutopt.hardware_profiles.reading import MAX_BYTES
from layoutopt.hardware_profiles.schema import MAX_GPUS, Cluster

README = Path(__file__).resolve().parents[2] / "hardware_profiles" / "README.md"

WHOLE = """
name: ours
gpu: h100
gpus_per_node: 8
nodes: 512
levels:
  - {name: nvlink, gpus: 8, bandwidth_per_gpu_one_way: 450GB/s, latency: 2us}
  - {name: rail, gpus: 256, bandwidth_per_gpu_one_way: 400Gbps, latency: 5us}
  - {name: spine, gpus: 4096, bandwidth_per_gpu_one_way: 400Gbps, latency: 8us, oversubscription: 2}
storage: {write: 270GB/s, write_per_node: 2GB/s}
failures_per_gpu_hour: 2e-5
usd_per_gpu_hour: 2.5
watts_per_gpu: 1.3kW
source: our own fabric sheet
"""


def from_text(text: str) -> object:
    return load_cluster("-", io.StringIO(text))


def test_a_whole_cluster() -> None:
    cluster = load_cluster("-", io.StringIO(WHOLE))
    assert (cluster.name, cluster.gpu.name) == ("ours", "h100-sxm-80gb")
    assert (cluster.gpus_per_node, cluster.nodes) == (8, 512)
    assert [level.gpus for level in cluster.levels] == [8, 256, 4096]
    assert cluster.levels[1].bytes_per_s_per_gpu_one_way == 50e9
    assert cluster.levels[2].usable_bytes_per_s == 25e9
    assert cluster.levels[0].latency_s == 2e-6
    assert cluster.storage.write_bytes_per_s_per_node == 2e9
    assert cluster.failures_per_gpu_hour == 2e-5
    assert (cluster.usd_per_gpu_hour, cluster.watts_per_gpu) == (2.5, 1300)
    assert cluster.filled == ()


def test_the_shortest_cluster_is_the_gpus_usual_one() -> None:
    cluster = load_cluster("-", io.StringIO("gpu: mi300x"))
    assert [level.name for level in cluster.levels] == ["xgmi", "network"]
    assert cluster.levels[-1].gpus == MAX_GPUS
    options = [one.option for one in cluster.filled]
    assert options[:2] == ["gpus_per_node", "levels"]
    assert {"storage.write", "failures_per_gpu_hour", "watts_per_gpu"} <= set(options)
    assert all(one.reason for one in cluster.filled)


def test_json_is_yaml() -> None:
    text = json.dumps(yaml.safe_load(WHOLE))
    assert load_cluster("-", io.StringIO(text)) == load_cluster("-", io.StringIO(WHOLE))


def test_a_file_by_path(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    path.write_text("\ufeff" + WHOLE, encoding="utf-8")  # as some editors save it
    assert load_cluster(str(path)) == load_cluster("-", io.StringIO(WHOLE))


def test_the_new_machine_in_the_readme_works_and_has_twenty_lines() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    block = next(one for one in blocks if "levels:" in one)
    assert len(block.strip().splitlines()) <= 20
    cluster = load_cluster("-", io.StringIO(block))
    assert cluster.gpu.name not in catalog.gpu_names()
    assert cluster.gpu.link_bytes_per_s_one_way == cluster.levels[0].bytes_per_s_per_gpu_one_way
    assert cluster.gpu.link_domain_gpus == cluster.levels[0].gpus
    assert cluster.gpu.gpus_per_node == cluster.gpus_per_node
    assert cluster.gpu.peak("bf16") > 0


def changed(key: str, value: object) -> str:
    """WHOLE with one key (``a.b`` or ``levels.0.gpus``) set, or removed where value is None."""
    data = yaml.safe_load(WHOLE)
    *path, last = [int(one) if one.isdigit() else one for one in key.split(".")]
    inner = data
    for one in path:
        inner = inner[one]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return yaml.safe_dump(data)


@pytest.mark.parametrize(
    ("key", "value", "field", "message"),
    [
        ("gpu", None, "gpu", "is missing"),
        ("gpu", "h1000", "gpu", "nearest: .*h100"),
        ("gpu", 100, "gpu", "keys with values"),
        ("gpu", ["h100"], "gpu", "a list"),
        ("gpus_per_node", True, "gpus_per_node", "true or false, but a whole number"),
        ("gpus_per_node", "8", "gpus_per_node", "'8', but a whole number"),
        ("gpus_per_node", 8.0, "gpus_per_node", "8.0, but a whole number"),
        ("gpus_per_node", 0, "gpus_per_node", "0 is not between 1 and 10,000,000"),
        ("gpus_per_node", -8, "gpus_per_node", "-8 is not between"),
        ("nodes", 10**30, "nodes", "is not between"),
        ("nodes", float("nan"), "nodes", "nan, but a whole number"),
        ("nodes", 513, "levels[2].gpus", "is 4096, but 513 nodes x 8 GPUs = 4104"),
        ("levels", [], "levels", "a list with entries"),
        ("levels", {"a": 1}, "levels", "a mapping"),
        ("levels.0", "nvlink", "levels[0]", "keys with values"),
        ("levels.0.gpus", None, "levels[0].gpus", "is missing"),
        ("levels.0.gpus", 3, "levels[0].gpus", "neither divides"),
        ("levels.0.gpus", 512, "levels[1].gpus", "is 256, less than the 512 of nvlink"),
        ("levels.1.gpus", 100, "levels[1].gpus", "is 100, which neither.*nearest: 96, 104"),
        (
            "levels.1.bandwidth_per_gpu_one_way",
            400,
            "levels[1].bandwidth_per_gpu_one_way",
            "'400' has no unit.*400Gbps or 50GB/s",
        ),
        (
            "levels.1.bandwidth_per_gpu_one_way",
            "0GB/s",
            "levels[1].bandwidth_per_gpu_one_way",
            "is zero",
        ),
        (
            "levels.1.bandwidth_per_gpu_one_way",
            float("inf"),
            "levels[1].bandwidth_per_gpu_one_way",
            "inf",
        ),
        ("levels.1.latency", 5, "levels[1].latency", "has no unit"),
        ("levels.1.latency", "-5us", "levels[1].latency", "negative"),
        ("levels.1.oversubscription", 0.5, "levels[1].oversubscription", "less than 1"),
        ("levels.1.oversubscription", "NaN", "levels[1].oversubscription", "nan"),
        ("levels.1.bandwith_per_gpu_one_way", "1GB/s", None, "nearest: bandwidth_per_gpu_one_way"),
        ("storage.write", 270, "storage.write", "has no unit"),
        ("storage.write", None, "storage.write", "is missing"),
        ("storage", "270GB/s", "storage", "keys with values"),
        ("failures_per_gpu_hour", float("nan"), "failures_per_gpu_hour", "nan"),
        ("failures_per_gpu_hour", float("inf"), "failures_per_gpu_hour", "inf"),
        ("failures_per_gpu_hour", -1e-5, "failures_per_gpu_hour", "-1e-05"),
        ("failures_per_gpu_hour", True, "failures_per_gpu_hour", "true or false"),
        ("usd_per_gpu_hour", "cheap", "usd_per_gpu_hour", "'cheap', but a number"),
        ("watts_per_gpu", 0, "watts_per_gpu", "is zero"),
        ("name", 7, "name", "text is needed"),
        ("gpu_per_node", 8, "gpu_per_node", "is not known; nearest: .*gpus_per_node"),
        ("pools", [1], "pools[0]", "keys with values"),
        ("switches", {"a": 1}, "switches.a", "names of nodes"),
    ],
)
def test_what_people_get_wrong(key: str, value: object, field: str | None, message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        from_text(changed(key, value))
    assert caught.value.message.startswith("standard input: ")
    json.dumps(caught.value.value, allow_nan=False)
    if field is not None:
        assert caught.value.field == field
        assert field in caught.value.message


NEW_GPU = {
    "name": "x1",
    "architecture": "hopper",
    "memory": "80GiB",
    "memory_bandwidth": "3TB/s",
    "peak": {"bf16": "900TFLOP/s"},
}


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"memory": 80}, "gpu.memory", "has no unit"),
        ({"memory": None}, "gpu.memory", "is missing"),
        ({"architecture": "hoper"}, "gpu.architecture", "nearest: hopper"),
        ({"architecture": "tensorwave"}, "gpu.architecture", "nearest"),
        ({"peak": {"fp8": "900TFLOP/s"}}, "gpu.peak", "neither bf16 nor fp16"),
        ({"peak": {"bf16": 989.5}}, "gpu.peak.bf16", "has no unit"),
        ({"peak": {"bf17": "9TFLOP/s"}}, "gpu.peak.bf17", "nearest: bf16"),
        ({"memry": "1GiB"}, "gpu.memry", "nearest: memory"),
    ],
)
def test_what_people_get_wrong_about_a_new_gpu(
    change: dict[str, object], field: str, message: str
) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        from_text(changed("gpu", {**NEW_GPU, **change}))
    assert caught.value.field == field


def test_a_new_gpu_without_levels_must_tell_its_link() -> None:
    text = yaml.safe_dump({"gpu": NEW_GPU, "gpus_per_node": 8})
    with pytest.raises(ProfileError, match="link_bandwidth_one_way is missing"):
        from_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- gpu: h100\n", "holds a list"),
        ("h100", "holds 'h100'"),
        ("42", "holds 42"),
        ("gpu: [h100", "is not YAML"),
        ("gpu: h100\x00", "is not YAML"),
        ("gpu: !!python/object:os.system x", "is not YAML"),
        ("gpu: h100\nnodes: 8\ngpu: a100\n", "the key gpu stands twice, the second time in line 3"),
        ("gpu: h100\nstorage: {write: 1GB/s, write: 2GB/s}", "write stands twice"),
        ("gpu: h100\n2026-99-99: 1", "cannot be read|not YAML|not known"),
        ("? [a, b]\n: 1", "not YAML|cannot be read|not known"),
        ("x: " + "[" * 5000, "not YAML|cannot be read"),
        ("x" * (MAX_BYTES + 1), "larger than 1 MiB"),
        ("gpu: h100\n? " + "k" * 1000 + "\n: 1", "is not known"),
        ("gpu: " + "h" * 100_000, "is not known"),
        ("gpu: h100\nnodes: " + "9" * 100_000, "nodes|cannot be read"),
    ],
)
def test_files_that_are_no_clusters(text: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ProfileError, match=message) as caught:
        from_text(text)
    assert "standard input" in caught.value.message
    assert len(caught.value.message) < 600
    assert time.monotonic() - started < 1


def test_yaml_that_unfolds_to_gigabytes_stays_folded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ProfileError) as caught:
        from_text("\n".join([*lines, "gpu: *a11"]))
    assert len(caught.value.message) < 600
    assert len(str(caught.value.value)) < 600


def test_an_outer_level_holds_whole_inner_ones() -> None:
    text = WHOLE.replace("gpus: 8, bandwidth", "gpus: 48, bandwidth")
    with pytest.raises(ProfileError, match=r"is 256, not a multiple of the 48.*nearest: 240, 288"):
        from_text(text)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="is a directory"):
        load_cluster(str(tmp_path))
    with pytest.raises(ProfileError, match="No such file"):
        load_cluster(str(tmp_path / "none.yaml"))
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ProfileError, match="larger than 1 MiB"):
        load_cluster(str(tmp_path / "big.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ProfileError, match="not UTF-8 text"):
        load_cluster(str(tmp_path / "latin.yaml"))


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = st.sampled_from([*yaml.safe_load(WHOLE), "pools", "switches", "x"])


@given(st.dictionaries(KEYS, VALUES))
def test_anything_is_a_cluster_or_an_input_error(change: dict[str, object]) -> None:
    data = {**yaml.safe_load(WHOLE), **change}
    outcome: Cluster | InputError
    try:
        outcome = read_cluster(data, "drawn.yaml")
    except InputError as error:
        outcome = error
    if isinstance(outcome, InputError):
        assert "drawn.yaml" in outcome.message
        json.dumps([outcome.value, outcome.nearest], allow_nan=False)
        return
    assert outcome.levels
    assert all(one.reason for one in outcome.filled)
