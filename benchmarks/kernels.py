"""What the kernels of one GPU take, against what the cost model says: a calibration without runs.

    python -m benchmarks.kernels --gpu h100 --framework megatron-core --out site.yaml
    python -m benchmarks.kernels --gpu h100 --curves kernels.json

Needs torch and a GPU, and one minute of it; nothing else in this repository needs either. Measured
are the kernels that a dense bf16 step is made of, at the sizes of an 8B and a 70B model cut over
tp 1 to 8: matrix products (forward, input gradient, weight gradient), causal attention (forward,
backward), RMSNorm and copies. ``--out`` is a file as ``layoutopt calibrate`` makes them: the factor
on kernel time is the ratio of measured to predicted seconds, summed over the products and the
attention of these layers; the factor on the rate of streaming kernels the same over norms and
copies. Links and overlap need runs or nccl-tests logs: ``layoutopt calibrate``. ``--curves`` keeps
each kernel's seconds, TFLOP/s and GB/s.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from layoutopt.calibration.site import MOST, Factors, Site, refuse_other_file
from layoutopt.costmodel.compute import gemm
from layoutopt.costmodel.counts import mean_context_tokens
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.machine import Machine, machine
from layoutopt.errors import InputError
from layoutopt.inputs.request import read_solve

if TYPE_CHECKING:
    import torch

MODELS = ("8B", "70B")
TENSOR = (1, 2, 4, 8)
TOKENS = 8192
Kind = Literal["gemm", "attention", "stream"]


@dataclass(frozen=True)
class Kernel:
    """One kernel: its sizes, what it computes and moves, and what the cost model says of it.

    ``sizes``: gemm (m, k, n); attention (heads, seq_len, head_dim); stream (rows, width).
    """

    kind: Kind
    name: str
    sizes: tuple[int, ...]
    flops: float
    moved_bytes: float
    predicted_s: float


@dataclass(frozen=True)
class Timed:
    """A kernel and the median of its measured seconds."""

    kernel: Kernel
    seconds: float

    def row(self) -> dict[str, Any]:
        """One point of a curve, units in the keys."""
        kernel = self.kernel
        return {
            **asdict(kernel),
            "seconds": self.seconds,
            "tflops_per_s": kernel.flops / self.seconds / 1e12,
            "gb_per_s": kernel.moved_bytes / self.seconds / 1e9,
        }


def jobs(gpu: str, framework: str) -> list[Job]:
    """The jobs whose kernels are measured, one a model."""
    options = {"gpu": gpu, "framework": framework, "gpus": 64, "seq_len": TOKENS}
    return [
        read_solve({"model": model, "precision": "bf16", **options}).question.job
        for model in MODELS
    ]


def kernels(job: Job) -> list[Kernel]:
    """The kernels of one layer and one sequence, for each tp."""
    rates, model = machine(job), job.model
    found = []
    up = (2 if model.gated_mlp else 1) * model.ffn
    for tp in TENSOR:
        qkv = (model.q_width + 2 * model.kv_width) // tp
        for inner, columns in (
            (model.hidden, qkv),
            (model.q_width // tp, model.hidden),
            (model.hidden, up // tp),
            (model.ffn // tp, model.hidden),
        ):
            found += _products(rates, inner, columns)
        found += _attention(job, rates, model.heads // tp)
    norm_bytes = rates.reach.norm_bytes
    found.append(_stream(rates, "rms_norm", model.hidden, norm_bytes))
    found.append(_stream(rates, "copy", model.hidden, 4.0))
    return found


def _products(rates: Machine, inner: int, columns: int) -> list[Kernel]:
    """Forward, input gradient and weight gradient: the three products of one linear layer."""
    sizes = {
        "forward": (TOKENS, inner, columns),
        "input_gradient": (TOKENS, columns, inner),
        "weight_gradient": (inner, TOKENS, columns),
    }
    made = []
    for name, (m, k, n) in sizes.items():
        said = gemm(rates, np.array([m]), np.array([k]), np.array([n]), 0.0).forward
        moved = 2.0 * (m * k + k * n + m * n)
        made.append(Kernel("gemm", name, (m, k, n), 2.0 * m * k * n, moved, float(said[0])))
    return made


def _attention(job: Job, rates: Machine, heads: int) -> list[Kernel]:
    """Causal attention of one sequence, FLOPs as ``compute.attention_core`` counts them."""
    width, seq = job.model.head_dim, TOKENS
    pairs = heads * seq * 2 * mean_context_tokens(job.model, seq)
    flops, moved = 2.0 * pairs * width, 8.0 * heads * seq * width
    forward = flops / rates.attention_forward_flops_per_s + rates.gap_s
    backward = 2.5 * flops / rates.attention_backward_flops_per_s + 2 * rates.gap_s
    sizes = (heads, seq, width)
    return [
        Kernel("attention", "forward", sizes, flops, moved, forward),
        Kernel("attention", "backward", sizes, 2.5 * flops, 2 * moved, backward),
    ]


def _stream(rates: Machine, name: str, width: int, bytes_an_element: float) -> Kernel:
    moved = bytes_an_element * TOKENS * width
    seconds = moved / rates.memory_bytes_per_s + rates.gap_s
    return Kernel("stream", name, (TOKENS, width), 0.0, moved, seconds)


# --- measuring: the only part that needs torch --------------------------------------------------


def work_of(kernel: Kernel, device: str) -> Callable[[], object]:
    """A call that runs ``kernel`` once on ``device``, its operands made beforehand."""
    import torch

    def made(*shape: int, grad: bool = False) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16, requires_grad=grad)

    if kernel.kind == "gemm":
        m, k, n = kernel.sizes
        left, right = made(m, k), made(k, n)
        return lambda: left @ right
    if kernel.kind == "stream":
        rows, width = kernel.sizes
        source, weight = made(rows, width), made(width)
        if kernel.name == "copy":
            target = torch.empty_like(source)
            return lambda: target.copy_(source)
        return lambda: torch.nn.functional.rms_norm(source, (width,), weight)
    heads, seq, width = kernel.sizes
    backward = kernel.name == "backward"
    q, k_, v = (made(1, heads, seq, width, grad=backward) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    if not backward:
        return lambda: attend(q, k_, v, is_causal=True)
    out = attend(q, k_, v, is_causal=True)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k_, v), grad, retain_graph=True)


def seconds_of(work: Callable[[], object], device: str, repeats: int) -> float:
    """Median seconds of a call, after a warm-up, by the device's own clock on a GPU."""
    import time

    import torch

    for _ in range(3):
        work()
    taken = []
    for _ in range(repeats):
        if device == "cpu":
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return statistics.median(taken)


def measure(found: Iterable[Kernel], device: str, repeats: int) -> list[Timed]:
    """Every kernel, one after the other; operands are freed in between."""
    return [Timed(one, seconds_of(work_of(one, device), device, repeats)) for one in found]


# --- what it says ---------------------------------------------------------------------------------


def factors(timed: Iterable[Timed]) -> Factors:
    """Kernel time and streaming rate over the shipped ones.

    Raises InputError where a ratio is beyond what is believed of a site: then the GPU named is not
    the GPU measured, or something else runs on it.
    """
    timed = list(timed)
    slower = _ratio([one for one in timed if one.kernel.kind != "stream"])
    streams = 1 / _ratio([one for one in timed if one.kernel.kind == "stream"])
    for name, value in (("kernel time", slower), ("streaming rate", streams)):
        if not 1 / MOST <= value <= MOST:
            raise InputError(
                f"{name} is {value:.2g} times the shipped figure, beyond {1 / MOST:g} to {MOST:g}: "
                "is this the GPU that --gpu names, and is it idle?",
                field="gpu",
                value=round(value, 3),
            )
    return Factors(compute_time=round(slower, 4), memory_rate=round(streams * slower, 4))


def _ratio(timed: list[Timed]) -> float:
    return sum(one.seconds for one in timed) / sum(one.kernel.predicted_s for one in timed)


def site_of(job: Job, timed: list[Timed], device_name: str) -> Site:
    """The calibration file's content."""
    return Site(
        gpu=job.cluster.gpu.name,
        framework=job.software.name,
        factors=factors(timed),
        runs=tuple(f"{one.kernel.kind} {one.kernel.name} {one.kernel.sizes}" for one in timed),
        made=f"{datetime.date.today().isoformat()} by benchmarks.kernels on {device_name}",
    )


def table(timed: Iterable[Timed]) -> str:
    """One line a kernel."""
    head = f"{'kernel':<26}{'sizes':>24}{'us':>11}{'TFLOP/s':>10}{'GB/s':>9}{'predicted':>11}"
    lines = [head]
    for one in timed:
        row, kernel = one.row(), one.kernel
        sizes = " x ".join(map(str, kernel.sizes))
        lines.append(
            f"{kernel.kind + ' ' + kernel.name:<26}{sizes:>24}{one.seconds * 1e6:>11.1f}"
            f"{row['tflops_per_s']:>10.1f}{row['gb_per_s']:>9.0f}"
            f"{kernel.predicted_s / one.seconds - 1:>+11.0%}"
        )
    return "\n".join(lines)


def main() -> None:
    """The command; exits with 2 where there is no GPU or the files cannot be written."""
    parser = argparse.ArgumentParser(description="Kernel times of one GPU, and a calibration.")
    parser.add_argument("--gpu", default="h100-sxm-80gb", help="the GPU's name in the catalogue")
    parser.add_argument("--framework", default="generic")
    parser.add_argument("--out", help="calibration to write")
    parser.add_argument("--curves", help="JSON file of every kernel to write")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        parser.error("torch is not installed: pip install torch")
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    try:
        if given.out:
            refuse_other_file(given.out)
        asked = jobs(given.gpu, given.framework)
        timed = measure([one for job in asked for one in kernels(job)], "cuda", given.repeats)
        print(table(timed))
        site = site_of(asked[0], timed, torch.cuda.get_device_name())
    except InputError as error:
        parser.error(error.message)
    print(f"compute_time {site.factors.compute_time:g}, memory_rate {site.factors.memory_rate:g}")
    if given.out:
        Path(given.out).write_text(site.text(), encoding="utf-8")
    if given.curves:
        Path(given.curves).write_text(json.dumps([one.row() for one in timed], indent=1))


if __name__ == "__main__":
    main()
