"""Solved plans of random questions: models, sizes, batches, GPUs and frameworks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from layoutopt import solve
from layoutopt.errors import InputError
from layoutopt.launchers.plan import Plan, read_plan

MODELS = (
    "8B", "70B", "405B", "gpt3-20b", "llama-2-13b", "qwen2.5-72b", "qwen3-32b", "nemotron-4-340b",
    "mixtral-8x7b", "mixtral-8x22b", "deepseek-v2-lite", "qwen3-30b-a3b", "glm-4.5", "deepseek-v3",
)  # fmt: skip
GPUS = ("h100", "a100-sxm-80gb", "h200", "b200")
SIZES = (16, 24, 32, 48, 64, 96, 128, 256, 512, 768, 1024, 2048)


def plans(framework: str, count: int, seed: int) -> Iterator[tuple[str, Plan]]:
    """``count`` questions that have an answer, with its name and its plan."""
    chance, found = random.Random(f"{framework} {seed}"), 0
    while found < count:
        model, gpu = chance.choice(MODELS), chance.choice(GPUS)
        gpus = chance.choice(SIZES)
        batch = chance.choice((1, 2, 4)) * gpus // chance.choice((1, 2))
        seq_len = chance.choice((4096, 8192))
        name = f"{framework}: {model} on {gpus} {gpu}, {batch} of {seq_len}"
        try:
            answer = solve(
                model=model, gpu=gpu, gpus=gpus, global_batch=batch, seq_len=seq_len,
                framework=framework, top=0, time_limit=20,
            )  # fmt: skip
        except InputError:
            continue  # no legal layout of so many GPUs
        if answer.plan is not None:
            found += 1
            yield name, read_plan(answer.to_dict())
