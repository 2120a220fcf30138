"""Large questions, as people ask them."""

from __future__ import annotations

from layoutopt.costmodel.job import Job
from layoutopt.costmodel.models import find_model
from layoutopt.costmodel.software import software
from layoutopt.costmodel.training import Training
from layoutopt.hardware_profiles.catalog import find_gpu
from layoutopt.hardware_profiles.cluster import default_cluster, with_network
from layoutopt.optimizer.question import USUAL, Question

LARGE = ("1T on 16,384", "405B on 6,000", "1T on 131,072")


def large(name: str) -> Question:
    """One of LARGE, on H100 with the default network."""
    if name == "405B on 6,000":
        return question("llama-3.1-405b", 6000, batch=1500)
    gpus = 16384 if name == "1T on 16,384" else 131072
    return question("megatron-1t", gpus, batch=8192, seq_len=2048)


def question(
    model: str,
    gpus: int,
    batch: int,
    seq_len: int = 8192,
    gpu: str = "h100-sxm-80gb",
    network_bytes_per_s: float | None = None,
) -> Question:
    """A question about a published model on the usual cluster of a GPU."""
    cluster = default_cluster(find_gpu(gpu)[0], gpus)
    if network_bytes_per_s is not None:
        cluster = with_network(cluster, network_bytes_per_s)
    job = Job(
        model=find_model(model)[0],
        cluster=cluster,
        training=Training(seq_len=seq_len, global_batch=batch, tokens=10**12),
        software=software("generic"),
        gpus=gpus,
    )
    return Question(job=job, pipeline=USUAL)
