"""What notes say of a mixture of experts."""

from __future__ import annotations

import pytest

from layoutopt.costmodel.training import CudaGraphs, Dispatcher
from layoutopt.validation.notes import expert_notes


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
