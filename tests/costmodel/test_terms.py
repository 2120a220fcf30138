"""Terms by hand: servers of 8 at 100 GB/s and 1 us, between them 10 GB/s and 10 us."""

from __future__ import annotations

import numpy as np
import pytest

from layoutopt.costmodel import compute, gradient_sync, sharding, terms
from layoutopt.costmodel.axes import FULL, NONE, SELECTIVE, Flags, ints
from layoutopt.costmodel.counts import count
from layoutopt.costmodel.job import Job
from layoutopt.costmodel.layout import CP_KINDS
from layoutopt.costmodel.machine import machine
from layoutopt.costmodel.terms import LayerTerms
from tests.costmodel.cases import CLUSTER, EXPERTS, IDEAL, LATENT, SMALL, flag, job, one, soft

HIDDEN_BYTES = 2 * 128 * 64
"""One sequence of 128 tokens, 64 wide, in 16 bit: 16,384."""
LAYER = 12_288 + 49_152
"""Weights of a small layer that tp divides; 128 numbers of norms stand beside them."""
COPIES = 2 * 64 * 32 / 8
"""On 8 tp ranks each of the 4 key and value heads stands twice: an eighth of both matrices more."""
TABLE = 1024 * 64
YES, NO = flag(True), flag(False)


def layer(asked: Job, tp: int = 1, ep: int = 1, recompute: int = NONE) -> LayerTerms:
    """One layer and microbatch of one sequence."""
    return terms.layer_terms(asked, one(tp), one(1), one(ep), one(1), one(recompute))


def test_a_microbatch_is_cut_along_the_sequence() -> None:
    """2 sequences of 128 tokens over cp 4: 64 tokens a GPU."""
    assert terms.tokens_per_gpu(job(), one(4), one(2))[0] == 64


def test_tensor_parallelism_gathers_and_scatters_twice_a_direction() -> None:
    """Two all-reduces of 16,384 bytes over 4 GPUs: each 2 x (3 us + 3/4 x 16,384 / 100 GB/s)."""
    one_sum = 2 * (3e-6 + 0.75 * HIDDEN_BYTES / 100e9)
    comm = layer(job(), tp=4).tp_comm
    assert comm.forward[0] == comm.backward[0] == pytest.approx(2 * one_sum)
    assert layer(job()).tp_comm.total[0] == 0


def test_full_recompute_repeats_the_forward_sums() -> None:
    """Three times the forward traffic in all: half as much again as without."""
    none, full = layer(job(), tp=4), layer(job(), tp=4, recompute=FULL)
    assert full.tp_comm.forward[0] == none.tp_comm.forward[0]
    assert full.tp_comm.total[0] == pytest.approx(1.5 * none.tp_comm.total[0])


def test_full_recompute_runs_the_forward_pass_again() -> None:
    """On compute alone: a third of (forward + twice that) were backward exactly twice forward."""
    full = layer(job(), recompute=FULL)
    assert full.recompute[0] == pytest.approx(full.compute.forward[0])
    assert full.backward[0] == pytest.approx(full.compute.total[0])
    assert layer(job()).recompute[0] == 0


def test_a_layer_bound_by_launches_launches_again() -> None:
    slow = job(efficiency=IDEAL.model_copy(update={"launch_s": 1.0}))
    full = layer(slow, recompute=FULL)
    assert full.compute.forward[0] == full.recompute[0] == 20
    assert full.compute.backward[0] == 40


def test_selective_recompute_runs_attention_again() -> None:
    asked = job()
    core = compute.attention_core(asked, machine(asked), np.ones(1), one(1), one(1))
    assert layer(asked, recompute=SELECTIVE).recompute[0] == pytest.approx(core.forward[0])
    per_op = job(software=soft(selective_scope="per_op"))
    work = layer(asked).compute.forward[0] - core.forward[0]
    assert layer(per_op, recompute=SELECTIVE).recompute[0] == pytest.approx(work / 2)


def ring(
    asked: Job, kind: str = "ring", *, cp: int, tp: int = 1, recompute: int = NONE
) -> compute.Seconds:
    """Context-parallel traffic of one layer."""
    return terms.layer_terms(
        asked, one(tp), one(cp), one(1), one(1), one(recompute), cp_kind=CP_KINDS.index(kind)
    ).cp_comm


def fast_compute() -> Job:
    """Attention takes no time, so nothing of a ring hides."""
    gpu = CLUSTER.gpu.model_copy(update={"peak_flops_per_s": {"bf16": 1e30}})
    return job(cluster=CLUSTER.model_copy(update={"gpu": gpu}))


def test_a_ring_passes_keys_and_values() -> None:
    """cp 4, 32 tokens a rank: K and V of 32 wide in 2 bytes, 4,096 bytes, 3 hops of 1 us each."""
    once = 3 * (1e-6 + 32 * 2 * 2 * 32 / 100e9)
    comm = ring(fast_compute(), cp=4)
    assert comm.forward[0] == pytest.approx(once)
    assert comm.backward[0] == pytest.approx(2 * once)


def test_a_ring_hides_behind_attention_but_for_one_hop_in_cp() -> None:
    """Attention of 1 s behind which all but a quarter hides; without, all of it shows."""
    gpu = CLUSTER.gpu.model_copy(update={"peak_flops_per_s": {"bf16": 1.0}})
    slow = job(cluster=CLUSTER.model_copy(update={"gpu": gpu}))
    assert ring(slow, cp=4).forward[0] == pytest.approx(ring(fast_compute(), cp=4).forward[0] / 4)


def test_a_ring_inside_a_server_is_beside_the_tensor_group() -> None:
    """tp 4 and cp 4 on servers of 8: neighbours stand 4 apart, half of them across the network."""
    once = 3 * (10e-6 + 32 * 2 * 2 * 32 / 4 / 10e9)
    assert ring(fast_compute(), tp=4, cp=4).forward[0] == pytest.approx(once)


def test_gathering_keys_and_values() -> None:
    """All-gather of 4 x 4,096 bytes: 3 us + 3/4 x 16,384 / 100 GB/s; backward twice."""
    once = 3e-6 + 0.75 * 16_384 / 100e9
    comm = ring(job(), "all_gather", cp=4)
    assert (comm.forward[0], comm.backward[0]) == pytest.approx((once, 2 * once))


def test_ulysses_exchanges_four_tensors() -> None:
    """q 64, k 32, v 32 in and 64 out of 32 tokens in 2 bytes: 12,288 bytes, 3/4 of it leaves."""
    once = 3e-6 + 0.75 * 12_288 / 100e9
    comm = ring(job(), "ulysses", cp=4)
    assert (comm.forward[0], comm.backward[0]) == pytest.approx((once, once))


@pytest.mark.parametrize("kind", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize("recompute", [SELECTIVE, FULL])
def test_attention_that_runs_again_talks_again(kind: str, recompute: int) -> None:
    none, again = ring(job(), kind, cp=4), ring(job(), kind, cp=4, recompute=recompute)
    assert again.forward[0] == none.forward[0]
    assert again.backward[0] == pytest.approx(none.backward[0] + none.forward[0])
    per_op = job(software=soft(selective_scope="per_op"))
    kept = ring(per_op, kind, cp=4, recompute=SELECTIVE)
    assert kept.total[0] == none.total[0], "the per-operator list saves attention's output"


def test_expanded_heads_travel_under_latent_attention() -> None:
    """8 heads x (12 + 8) for K and V together, 2 bytes, 32 tokens: 10,240 bytes a hop."""
    gpu = CLUSTER.gpu.model_copy(update={"peak_flops_per_s": {"bf16": 1e30}})
    asked = job(LATENT, cluster=CLUSTER.model_copy(update={"gpu": gpu}))
    assert ring(asked, cp=4).forward[0] == pytest.approx(3 * (1e-6 + 10_240 / 100e9))


def test_experts_dispatch_and_combine() -> None:
    """128 tokens / tp 2 x 2 copies x 128 bytes = 16,384; 3/4 leaves, twice a direction."""
    comm = layer(job(EXPERTS), tp=2, ep=4).ep_comm
    assert comm.forward[0] == pytest.approx(2 * (3e-6 + 0.75 * 16_384 / 100e9))
    assert comm.backward[0] == comm.forward[0]
    assert layer(job(), ep=1).ep_comm.total[0] == 0


def test_fused_dispatch_sends_copies_for_one_rank_once() -> None:
    """2 copies over 4 ranks: 4 (1 - 9/16) = 1.75 of the 2 are distinct."""
    comm = layer(job(EXPERTS, dispatcher="deduplicated"), tp=2, ep=4).ep_comm
    assert comm.forward[0] == pytest.approx(2 * (3e-6 + 1.75 / 2 * 0.75 * 16_384 / 100e9))


def test_dispatch_hides_where_it_runs_beside_compute() -> None:
    """A share of 0.75 hidden, where the framework or the job overlaps at all."""
    whole = layer(job(EXPERTS), ep=4).ep_comm.total[0]
    can = soft(overlap_ep=0.75)
    assert layer(job(EXPERTS, software=can), ep=4).ep_comm.total[0] == whole
    told = job(EXPERTS, software=can, expert_overlap=True)
    does = job(EXPERTS, software=can.model_copy(update={"expert_overlap": True}))
    for asked in (told, does):
        assert layer(asked, ep=4).ep_comm.total[0] == pytest.approx(whole / 4)


def test_a_layer_takes_as_long_as_the_host_needs_to_launch_it() -> None:
    """1,000 + 2 x 50 kernels of 100 us and a dense layer's 20: 112 ms forward, twice backward.

    What travels meanwhile is part of that time, so that a faster link saves nothing.
    """
    figures = {"launch_s": 1e-4, "expert_launches": 1000.0, "grouped_launches": 50.0}
    slow = IDEAL.model_copy(update=figures)
    for ep, held in ((4, 2), (8, 1)):
        each = layer(job(EXPERTS, efficiency=slow), ep=ep)
        assert each.forward[0] == pytest.approx((1020 + 50 * held) * 1e-4)
        assert each.backward[0] == pytest.approx(2 * (1020 + 50 * held) * 1e-4)


def test_expert_tensor_parallelism_gathers_its_copies() -> None:
    """etp 2 inside ep 4: exchanges 2 apart, and the 2 x 32,768 bytes of two ranks summed."""
    comm = terms.layer_terms(job(EXPERTS), one(1), one(1), one(4), one(1), one(0), etp=one(2))
    exchange = 3e-6 + 0.75 * 32_768 / 100e9
    sums = 2 * (1e-6 + 0.5 * 2 * 32_768 / 100e9)
    assert comm.ep_comm.forward[0] == pytest.approx(2 * exchange + sums)


def test_routed_experts_need_no_tensor_group() -> None:
    """Attention's pair alone; with shared experts, both."""
    assert EXPERTS.moe is not None
    shared = EXPERTS.model_copy(update={"moe": EXPERTS.moe.model_copy(update={"shared_ffn": 128})})
    dense, routed, both = (
        float(layer(job(model), tp=4).tp_comm.forward[0]) for model in (SMALL, EXPERTS, shared)
    )
    assert routed == pytest.approx(dense / 2)
    assert both == pytest.approx(dense)


def test_half_of_the_layers_with_experts_count_half() -> None:
    assert EXPERTS.moe is not None
    half = EXPERTS.model_copy(update={"moe": EXPERTS.moe.model_copy(update={"layers": 6})})
    mixed, dense, all_moe = (layer(job(model), ep=4) for model in (half, SMALL, EXPERTS))
    assert mixed.ep_comm.total[0] == pytest.approx(all_moe.ep_comm.total[0] / 2)
    mean = (dense.compute.total[0] + all_moe.compute.total[0]) / 2
    assert mixed.compute.total[0] == pytest.approx(mean)


def test_a_message_is_the_hidden_state_there_and_its_gradient_back() -> None:
    """64 GPUs, so some boundary crosses the network; 16,384 / 4 bytes a rank of tp 4."""
    got = terms.message_seconds(job(), one(4), one(1), one(2), one(1))
    assert got[0] == pytest.approx(2 * (10e-6 + HIDDEN_BYTES / 4 / 10e9))
    kept = job(software=soft(scatter_gather=False))
    whole = terms.message_seconds(kept, one(4), one(1), one(2), one(1), sp=False)
    assert whole[0] == pytest.approx(2 * (10e-6 + HIDDEN_BYTES / 10e9))
    assert terms.message_seconds(job(), one(4), one(1), one(1), one(1))[0] == 0


def test_a_pipeline_inside_one_server_uses_its_links() -> None:
    got = terms.message_seconds(job(gpus=8), one(1), one(1), one(8), one(1))
    assert got[0] == pytest.approx(2 * (1e-6 + HIDDEN_BYTES / 100e9))


def parameters(asked: Job, tp: int, layers: int, first: Flags, last: Flags) -> float:
    """stage_parameters of one layout."""
    return float(sharding.stage_parameters(asked, one(tp), one(layers), first, last)[0])


def test_parameters_of_stages_by_hand() -> None:
    """tp divides matrices and tables, norms are whole."""
    assert parameters(job(), 1, 3, NO, NO) == 3 * (LAYER + 128)
    assert parameters(job(), 4, 3, NO, NO) == 3 * (LAYER / 4 + 128)
    assert parameters(job(), 4, 3, YES, NO) == 3 * (LAYER / 4 + 128) + TABLE / 4
    assert parameters(job(), 4, 3, NO, YES) == 3 * (LAYER / 4 + 128) + TABLE / 4 + 64
    assert parameters(job(), 1, 12, YES, YES) == count(SMALL).total


def test_a_shared_table_is_held_by_both_end_stages() -> None:
    tied = job(SMALL.model_copy(update={"tied_embeddings": True}))
    assert parameters(tied, 1, 12, YES, YES) == count(tied.model).total
    assert parameters(tied, 1, 0, YES, NO) == TABLE
    assert parameters(tied, 1, 0, NO, YES) == TABLE + 64


def test_experts_are_counted_apart_and_routers_copied() -> None:
    """Attention 12,288 over tp, norms 128 and a router of 512 on every rank; 8 experts over 4."""
    asked = job(EXPERTS)
    assert parameters(asked, 4, 2, NO, NO) == 2 * (12_288 / 4 + 128 + 512)
    held = sharding.expert_parameters(asked, one(2), one(4), 1)
    assert held[0] == 2 * 8 * 24_576 / 4
    assert sharding.expert_parameters(asked, one(2), one(4), 2)[0] == held[0] / 2
    whole = parameters(asked, 1, 12, YES, YES) + sharding.expert_parameters(asked, 12, one(1), 1)[0]
    assert whole == count(EXPERTS).total


def test_down_projections_of_latent_attention_are_copied() -> None:
    """64 x (32 + 16 + 4) = 3,328 down; norms 128 + 32 + 16; the rest over tp 2."""
    counts = count(LATENT)
    divided = counts.dense_layer_params - 3_328 - counts.norm_params
    assert counts.norm_params == 128 + 48
    assert parameters(job(LATENT), 2, 1, NO, NO) == divided / 2 + 3_328 + 176


def gathers(asked: Job, stage: int, *, reshard: bool = True) -> list[float]:
    """Forward and backward seconds of one layer on tp 8, dp 8."""
    got = sharding.gather_seconds(asked, one(8), one(1), one(stage), reshard=reshard)
    return [float(got.forward[0]), float(got.backward[0])]


def test_zero_3_gathers_twice_where_it_reshards_and_once_where_not() -> None:
    """7,808 parameters over 8 servers, one adapter each: 7 x 10 us + 7/8 of the bytes."""
    each = LAYER / 8 + COPIES + 128
    gather, scatter = (70e-6 + 7 / 8 * size * each / 10e9 for size in (2, 4))
    assert gathers(job(), 3) == pytest.approx([gather, gather + scatter])
    assert gathers(job(), 3, reshard=False) == pytest.approx([gather, scatter])
    assert gathers(job(), 2) == pytest.approx([0, scatter])
    assert gathers(job(), 1) == gathers(job(), 0) == [0, 0]


def test_a_shard_group_is_nearer_than_all_replicas() -> None:
    """dp 64 in shards of 8: the gather stays in the server, 7 us + 7/8 of the bytes at 100 GB/s."""
    got = sharding.gather_seconds(job(), one(1), one(1), one(3), shard=one(8))
    assert got.forward[0] == pytest.approx(7e-6 + 7 / 8 * 2 * (LAYER + 128) / 100e9)


def test_zero_3_gathers_experts_over_their_own_replicas() -> None:
    """tp 8, ep 8: beside 12,288 / 8 + 640 parameters one expert of 24,576, over 8 servers."""
    each = 12_288 / 8 + COPIES + 128 + 512
    got = sharding.gather_seconds(job(EXPERTS), one(8), one(1), one(3), ep=one(8))
    gather = sum(70e-6 + 7 / 8 * 2 * size / 10e9 for size in (each, 24_576))
    assert got.forward[0] == pytest.approx(gather)
    assert sync(job(EXPERTS), 3, ep=8) == pytest.approx(sync(job(), 3)), "only the ends are left"


def sync(
    asked: Job, stage: int, *, pp: int = 1, layers: int = 12, ep: int = 1, shard: int | None = None
) -> list[float]:
    """Reduce and gather seconds of the first stage on tp 8."""
    got = gradient_sync.sync_seconds(
        asked,
        one(8),
        one(pp),
        one(stage),
        one(layers),
        ep=one(ep),
        shard=None if shard is None else one(shard),
    )
    return [float(got.reduce[0]), float(got.gather[0])]


def wire(size: float, ranks: int = 8) -> float:
    """A gather of ``size`` bytes over that many servers, one rank each."""
    return float((ranks - 1) * 10e-6 + (ranks - 1) / ranks * size / 10e9)


def test_gradients_are_summed_once_a_step() -> None:
    """All parameters of tp 8: layers 12 x 7,808, tables 2 x 8,192, last norm 64."""
    held = 12 * (LAYER / 8 + COPIES + 128) + 2 * TABLE / 8 + 64
    assert sync(job(), 0) == pytest.approx([2 * wire(4 * held), 0])
    assert sync(job(), 1) == pytest.approx([wire(4 * held), wire(2 * held)])


def test_zero_2_and_3_leave_the_ends_for_the_step() -> None:
    ends = 2 * TABLE / 8 + 64
    for stage in (2, 3):
        assert sync(job(), stage) == pytest.approx([wire(4 * ends), wire(2 * ends)])


def test_the_first_stage_of_a_pipeline_has_one_table() -> None:
    """pp 2 on 64 GPUs of tp 8: 4 ranks, 6 layers and the input table."""
    held = 6 * (LAYER / 8 + COPIES + 128) + TABLE / 8
    assert sync(job(), 1, pp=2, layers=6) == pytest.approx([wire(4 * held, 4), wire(2 * held, 4)])


def test_shards_are_summed_across_their_replicas() -> None:
    """8 replicas in shards of 2: a scatter over 2, then a sum of half over 4 groups."""
    held = 12 * (LAYER / 8 + COPIES + 128) + 2 * TABLE / 8 + 64
    reduce, gather = sync(job(), 1, shard=2)
    assert reduce == pytest.approx(wire(4 * held, 2) + 2 * wire(4 * held / 2, 4))
    assert gather == pytest.approx(wire(2 * held, 2))
    whole = sync(job(), 1, shard=8)
    assert whole == pytest.approx(sync(job(), 1))


def test_experts_are_summed_over_their_own_replicas() -> None:
    """tp 8, ep 8: 8 replicas of one expert a layer; the rest as in a dense model."""
    rest = 12 * (12_288 / 8 + COPIES + 128 + 512) + 2 * TABLE / 8 + 64
    experts = 12 * 24_576
    got = sync(job(EXPERTS), 1, ep=8)
    assert got == pytest.approx(
        [wire(4 * rest) + wire(4 * experts), wire(2 * rest) + wire(2 * experts)]
    )


def test_a_shared_table_is_summed_between_the_end_stages() -> None:
    """TABLE / 8 gradients of 4 bytes pass once: 20 us of latency, 32,768 bytes at 10 GB/s."""
    tied = job(SMALL.model_copy(update={"tied_embeddings": True}))
    got = gradient_sync.tied_embedding_seconds(tied, one(8), one(2))
    assert got[0] == pytest.approx(20e-6 + 4 * TABLE / 8 / 10e9)
    assert gradient_sync.tied_embedding_seconds(tied, one(8), one(1))[0] == 0
    assert gradient_sync.tied_embedding_seconds(job(), one(8), one(2))[0] == 0


def test_owners_of_whole_tensors_broadcast_them_in_turn() -> None:
    """8 ranks of 5 ms beside the gather; alone, a rank has nobody to tell."""
    owners = job(software=soft(owner_s=5e-3))
    assert sync(owners, 1)[1] == pytest.approx(sync(job(), 1)[1] + 40e-3)
    assert sync(owners, 1, shard=1)[1] == sync(job(), 1, shard=1)[1]
    assert sync(owners, 0)[1] == 0


def test_a_slow_reduction_slows_no_message() -> None:
    """comm_factor is of data-parallel traffic."""
    slow = job(software=soft(comm_factor=4.0))
    held = 12 * (LAYER / 8 + COPIES + 128) + 2 * TABLE / 8 + 64
    assert sync(slow, 1)[0] == pytest.approx(70e-6 + 4 * 7 / 8 * 4 * held / 10e9)
    axes = (one(4), one(1), one(2), one(1))
    assert terms.message_seconds(slow, *axes) == terms.message_seconds(job(), *axes)


def test_the_optimizer_steps_what_a_rank_holds() -> None:
    """34 bytes a parameter at 1 TB/s; a shard of 8 from ZeRO-1 up."""
    held = 12 * (LAYER / 8 + COPIES + 128) + 2 * TABLE / 8 + 64
    for stage, share in ((0, 1), (1, 8), (2, 8), (3, 8)):
        got = gradient_sync.optimizer_seconds(job(), one(8), one(1), one(stage), one(12))
        assert got[0] == pytest.approx(34 * held / share / 1e12)


def test_axes_in_arrays_equal_axes_one_by_one() -> None:
    tp, cp, batch = ints([1, 2, 4, 8]), ints([2, 1, 2, 1]), ints([1, 2, 1, 4])
    recompute = ints([NONE, FULL, SELECTIVE, NONE])
    together = terms.layer_terms(job(), tp, cp, one(1), batch, recompute).total
    for row in range(4):
        mine = [one(int(axis[row])) for axis in (tp, cp, batch, recompute)]
        alone = terms.layer_terms(job(), mine[0], mine[1], one(1), mine[2], mine[3])
        assert alone.total[0] == together[row]
