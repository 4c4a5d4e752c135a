"""Steps of PyTorch's DistributedDataParallel (Gloo) with SIZE processes of one thread each, for bench_comm: answers each
line (how many steps) with the milliseconds of one."""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import models
import ranks

BATCH = 64


def main():
    rank = ranks.join(int(sys.argv[1]), own_core=True)
    torch.manual_seed(1)
    model = models.small_resnet18().to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4, fused=True)
    image = torch.randn(BATCH, 1, 28, 28).to(memory_format=torch.channels_last)
    label = torch.randint(0, 10, (BATCH,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(image), label).backward()
        optimizer.step()

    for _ in range(3):
        step()
    while True:
        turn = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline()
            if line:
                turn[0] = int(line)
        dist.broadcast(turn, 0)
        times = int(turn[0])
        if times == 0:
            return
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            step()
        dist.barrier()
        if rank == 0:
            print(1e3 * (time.perf_counter() - begin) / times, flush=True)


main()
