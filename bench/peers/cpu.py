"""PyTorch's training steps for the cases of bench/cpu.cpp.

    python3 bench/peers/cpu.py CASE DTYPE THREADS BATCH [--channels-last] [--compile] [--memory]

Answers each line of its input (seconds to measure for) with samples a second, or for `matmul` GFLOP/s. With --memory:
prints the growth of peak RSS over five steps, in KiB.
"""
import argparse
import resource
import sys
import time

import torch
import torch.nn.functional as F

import models

CASES = {  # model, shape of a sample, vocabulary of tokens, labels a sample, classes, optimizer
    "resnet18_small": (models.small_resnet18, (1, 28, 28), None, 1, 10, "momentum"),
    "mnist_cnn": (models.MnistCnn, (1, 28, 28), None, 1, 10, "momentum"),
    "bert_mini": (models.BertMini, (128,), 30522, 128, 30522, "adam"),
    "gpt2": (models.Gpt2, (256,), 50257, 256, 50257, "adam"),
    "resnet50": (models.resnet50, (3, 224, 224), None, 1, 1000, "momentum"),
    "lstm": (models.LstmClassifier, (100,), 10000, 1, 5, "adam"),
}


class Step:
    def __init__(self, options):
        make, sample, vocabulary, labels, classes, optimizer = CASES[options.case]
        torch.manual_seed(1)
        self.model, self.samples = make(), options.batch
        shape = (options.batch, *sample)
        self.input = torch.randn(shape) if vocabulary is None else torch.randint(0, vocabulary, shape)
        self.label = torch.randint(0, classes, (options.batch * labels,))
        self.low = options.dtype == "bf16"
        if options.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.input = self.input.to(memory_format=torch.channels_last)
        parameters = self.model.parameters()
        self.optimizer = (
            torch.optim.SGD(parameters, lr=0.001, momentum=0.9, weight_decay=1e-4, fused=True)
            if optimizer == "momentum"
            else torch.optim.Adam(parameters, lr=1e-4, fused=True))
        self.loss = lambda x, y: F.cross_entropy(self.model(x), y)
        if options.compile:
            self.loss = torch.compile(self.loss)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            loss = self.loss(self.input, self.label)
        loss.backward()
        self.optimizer.step()
        return self.samples


class Matmul:
    def __init__(self, options):
        dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        self.a, self.b = (torch.randn(2048, 2048).to(dtype) for _ in range(2))

    def __call__(self):
        torch.mm(self.a, self.b)
        return 2 * 2048**3 * 1e-9


def peak_kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("dtype")
    parser.add_argument("threads", type=int)
    parser.add_argument("batch", type=int)
    for flag in ("--channels-last", "--compile", "--memory"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    step = Matmul(options) if options.case == "matmul" else Step(options)
    if options.memory:
        before = peak_kilobytes()
        for _ in range(5):
            step()
        print(peak_kilobytes() - before)
        return
    for _ in range(2):
        step()
    for line in sys.stdin:
        done, begin = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - begin < float(line):
            done += step()
        print(done / (time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
