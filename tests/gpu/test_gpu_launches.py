"""Launches in clusters and with counters, of kernels written in PTX: what the runtime promises to generators."""

from __future__ import annotations

import threading

import pytest
import torch

import gpu
from lampwork import _C
from lampwork.codegen.target import DeviceFunction
from lampwork.errors import DriverError
from lampwork.loops.ir.index import ZERO
from lampwork.runtime import Executable
from lampwork.runtime.program import CallKernel, Launch, Program, Value

gpu.require()

pytestmark = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")

COUNTED = """.version 6.3
.target sm_70
.address_size 64
.visible .entry counted(.param .u64 out, .param .u64 extent, .param .u64 words) {
  .reg .pred %p;
  .reg .b32 %r<7>;
  .reg .b64 %rd<2>;
  mov.u32 %r0, %tid.x;
  setp.ne.u32 %p, %r0, 0;
  @%p ret;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [words];
  atom.global.add.u32 %r1, [%rd1+4], 1;
  membar.gl;
  mov.u32 %r2, %nctaid.x;
  sub.u32 %r3, %r2, 1;
  atom.global.inc.u32 %r4, [%rd1], %r3;
  setp.ne.u32 %p, %r4, %r3;
  @%p ret;
  membar.gl;
  ld.volatile.global.u32 %r5, [%rd1+4];
  mov.u32 %r6, 0;
  st.global.u32 [%rd1+4], %r6;
  st.global.u32 [%rd0], %r5;
  ret;
}
"""
"""The last block writes how many there were. A counter that is not zero at first makes it another number."""

RANKS = """.version 7.8
.target sm_90
.address_size 64
.visible .entry ranks(.param .u64 out, .param .u64 extent) {
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .b64 %rd<3>;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mov.u32 %r0, %tid.x;
  setp.ne.u32 %p, %r0, 0;
  @%p ret;
  ld.param.u64 %rd0, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r3, %cluster_nctarank;
  mul.lo.u32 %r4, %r3, 100;
  add.u32 %r5, %r4, %r2;
  mul.wide.u32 %rd1, %r1, 4;
  add.u64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r5;
  ret;
}
"""
"""Each block writes its rank within its cluster, and 100 times how many blocks that has."""


def program(image: str, name: str, results: int, extent: int, launch: Launch, times: int = 1) -> Executable:
    device = torch.device("cuda", 0)
    kernel = _C.DeviceKernel(image.encode(), name, 1, 0)
    function = DeviceFunction(kernel, launch.block, launch.per_block, ZERO, launch.cluster)
    call = CallKernel(function, (0,), (), extent, name=name, launch=launch)
    out = Value("fresh", torch.int32, (results,), (1,), device=device)
    return Executable(Program((out,), (call,) * times, (0,), 0, 0, 0, device=device))


def captured(run: Executable) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run.run([])[0]
    return graph, out


def counted(blocks: int, counters: int = 2, times: int = 3) -> Executable:
    return program(COUNTED, "counted", 1, blocks, Launch((64, 1), 1, counters=counters), times)


def test_counters_are_zero_in_every_call_on_every_stream() -> None:
    programs = {blocks: counted(blocks, 2 * blocks) for blocks in (1, 7, 500, 3000)}
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    found: list[tuple[int, torch.Tensor]] = []
    for turn in range(200):
        with torch.cuda.stream(streams[turn % 4]):
            found += [(blocks, run.run([])[0]) for blocks, run in programs.items()]
    torch.cuda.synchronize()
    assert all(got.item() == blocks for blocks, got in found)


def test_counters_of_threads_that_share_a_stream() -> None:
    run, wrong = counted(300), list[int]()

    def work() -> None:
        got = [run.run([])[0] for _ in range(100)]
        wrong.extend(each.item() for each in got if each.item() != 300)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_counters_of_graphs_that_run_beside_each_other_and_beside_calls() -> None:
    run = counted(2000)
    run.run([])
    graphs = [(*captured(run), torch.cuda.Stream()) for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for graph, out, stream in graphs:
            with torch.cuda.stream(stream):
                out.zero_()
                graph.replay()
        direct = run.run([])[0]
        torch.cuda.synchronize()
        assert [out.item() for _, out, _ in graphs] == [2000, 2000] and direct.item() == 2000
    # The memory of the graphs goes with them.
    graphs.clear()
    graph = out = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert run.run([])[0].item() == 2000


@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
def test_blocks_are_launched_in_clusters(cluster: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        with pytest.raises(DriverError):
            program(RANKS, "ranks", 5 * cluster, 5, Launch((64, 1), 1, cluster=cluster))
        return
    run = program(RANKS, "ranks", 5 * cluster, 5, Launch((64, 1), 1, cluster=cluster))
    wanted = [100 * cluster + rank for rank in range(cluster)] * 5
    assert run.run([])[0].tolist() == wanted
    graph, out = captured(run)
    graph.replay()
    assert out.tolist() == wanted


def test_a_cluster_that_has_no_room() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the card has no clusters")
    with pytest.raises(DriverError, match="has no room for a cluster of 32 blocks"):
        program(RANKS, "ranks", 32, 1, Launch((64, 1), 1, cluster=32))


def test_launches_alone_are_timed() -> None:
    kernel = _C.DeviceKernel(COUNTED.replace("ld.param.u64 %rd0, [out];", "ret;").encode(), "counted", 1, 1)
    stream = torch.cuda.current_stream().cuda_stream
    launch, memory = (
        min(kernel.time_launches(0, stream, 50, taken) for _ in range(20)) / 50 for taken in (0, 4000)
    )
    torch.cuda.synchronize()
    print(
        f"a launch takes the host {launch * 1e6:.2f} us, with memory from torch's allocator {memory * 1e6:.2f} us"
    )
    assert 1e-7 < launch < 1e-3
