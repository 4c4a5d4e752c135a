"""All-reduce of PyTorch's Gloo backend between SIZE processes, for bench_comm: answers each line ("bytes times") with
the median microseconds."""

import statistics
import sys
import time

import torch
import torch.distributed as dist

import ranks


def main():
    rank = ranks.join(int(sys.argv[1]))
    while True:
        turn = torch.zeros(2, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline()
            if line:
                turn = torch.tensor([int(word) for word in line.split()])
        dist.broadcast(turn, 0)
        count, times = int(turn[0]) // 4, int(turn[1])
        if count == 0:
            return
        values = torch.zeros(count)
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            dist.all_reduce(values)
            taken.append(time.perf_counter() - begin)
        if rank == 0:
            print(statistics.median(taken) * 1e6, flush=True)


main()
