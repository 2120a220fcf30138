"""Random layouts of the 12-layer models on 64 GPUs, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from layoutopt.costmodel.layout import RECOMPUTE, Layout


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout that the arithmetic of the cost model has to bear, legal or not."""
    tp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    pp = draw(st.integers(1, 12))
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=max(1, 64 // (tp * cp * pp)),
        ep=draw(st.sampled_from([1, 2])),
        vpp=draw(st.sampled_from([1, 2, 3])),
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        microbatches=draw(st.integers(1, 40)),
        zero_stage=draw(st.integers(0, 3)),
        reshard=draw(st.booleans()),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        sequence_parallel=draw(st.booleans()),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "zbv"])),
    )
