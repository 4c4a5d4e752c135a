"""Steps of PyTorch's DistributedDataParallel (Gloo) with SIZE processes of one thread each, for bench_comm: answers each
line (how many steps) with the milliseconds of one."""

import sys

import torch
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

    ranks.answer(rank, step)


main()
