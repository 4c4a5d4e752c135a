"""PyTorch's training steps for the cases of bench/gpu_spine.cpp: bf16 AMP, channels-last, fused optimizer, CUDA graphs.

    python3 bench/peers/gpu_spine.py [--compile]
"""
import argparse
import time

import torch
import torch.nn.functional as F

from models import MnistCnn, small_resnet18

BATCHES, WARM_UP, STEPS, ROUNDS = 8, 20, 50, 9


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
        for name, model, batch_size in (("mnist_cnn batch 64 bf16", MnistCnn, 64), ("resnet18_small batch 256 bf16", small_resnet18, 256)):
            torch.manual_seed(1)
            time_ms, loss = measure(model(), batch_size, compiled)
            print(f"{name + (' compiled' if compiled else ' graph'):<34} {time_ms:10.4f} {loss:12.4f}", flush=True)
