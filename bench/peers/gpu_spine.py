"""PyTorch's training steps for the cases of bench/gpu_spine.cpp: bf16 AMP, channels-last, fused optimizer, CUDA graphs.

    python3 bench/peers/gpu_spine.py [--compile]
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCHES, WARM_UP, STEPS, ROUNDS = 8, 20, 50, 9


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 20, 5)
        self.fc = nn.Linear(320, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + skip)


class SmallResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        layers, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(512, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def measure(model, batch_size, compiled):
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = [torch.randn(batch_size, 1, 28, 28, device="cuda").to(memory_format=torch.channels_last) for _ in range(BATCHES)]
    labels = [torch.randint(0, 10, (batch_size,), device="cuda") for _ in range(BATCHES)]
    image, label = images[0].clone(), labels[0].clone()
    loss_function = lambda x, y: F.cross_entropy(model(x), y)
    if compiled:
        loss_function = torch.compile(loss_function)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_function(image, label)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(STEPS):
            image.copy_(images[i % BATCHES])
            label.copy_(labels[i % BATCHES])
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / STEPS * 1e3)
    return sorted(times)[ROUNDS // 2], loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true", help="torch.compile too (a minute)")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print(f"{'PyTorch ' + torch.__version__:<34} {'ms a step':>10} {'last loss':>12}")
    for compiled in (False, True) if arguments.compile else (False,):
        for name, model, batch_size in (("mnist_cnn batch 64 bf16", MnistCnn, 64), ("resnet18_small batch 256 bf16", SmallResNet18, 256)):
            torch.manual_seed(1)
            time_ms, loss = measure(model(), batch_size, compiled)
            print(f"{name + (' compiled' if compiled else ' graph'):<34} {time_ms:10.4f} {loss:12.4f}", flush=True)
