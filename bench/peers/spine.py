"""What bench_spine compares with, in PyTorch: growth of peak RSS over five training steps of the small ResNet-18."""

import resource
import sys

import torch
from torch import nn

from models import small_resnet18


def memory():
    model = small_resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x, y = torch.rand(64, 1, 28, 28) * 2 - 1, torch.arange(64) % 10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


if __name__ == "__main__":
    {"memory": memory}[sys.argv[1]]()
