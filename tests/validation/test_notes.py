"""What notes say of a mixture of experts, and of a GPU that has no name."""

from __future__ import annotations

import pytest

from layoutopt.costmodel.training import CudaGraphs, Dispatcher
from layoutopt.units import GIB
from layoutopt.validation.notes import expert_notes, memory_notes


@pytest.mark.parametrize(
    ("notes", "dispatcher", "graphs", "overlap"),
    [
        ("", None, None, None),
        ("MoE dispatcher: hybridep; EP all-to-all overlap: True; ", "deduplicated", None, True),
        ("Dispatcher DeepEP. recompute modules: full.", "deduplicated", None, None),
        ("Dispatcher A2A. recompute modules: norm", "alltoall", None, None),
        ("alltoall dispatcher, CUDA graphs off, EP overlap off.", "alltoall", "none", False),
        ("CUDA graphs: transformer_engine ['attn', 'moe_router']; ", None, "layers", None),
        ("CUDA graphs: full_iteration []; MoE dispatcher: hybridep", "deduplicated", "full", None),
        ("row label: tokendrop; ", None, "full", None),
        ("moe_dev branch, 1F1B all-to-all overlap.", None, None, True),
        ("SFT; all-to-all dispatcher, no EP overlap", "alltoall", None, False),
        ("EP all-to-all overlap: False", None, None, None),
    ],
)
def test_words_of_published_notes(
    notes: str, dispatcher: Dispatcher | None, graphs: CudaGraphs | None, overlap: bool | None
) -> None:
    assert expert_notes(notes) == (dispatcher, graphs, overlap)


@pytest.mark.parametrize(
    ("notes", "gib"),
    [
        ("Peak reserved. [gpu as given: blackwell-sm100 (about 184 GiB)]", 184),
        ("Forced expert balance. [gpu as given: h800-80gb]", None),
        ("about 184 GiB a GPU", None),
    ],
)
def test_memory_of_a_gpu_as_given(notes: str, gib: int | None) -> None:
    assert memory_notes(notes) == (None if gib is None else gib * GIB)
