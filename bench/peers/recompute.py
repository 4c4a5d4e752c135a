"""PyTorch's training steps for the cases of bench/recompute.cpp, with torch.utils.checkpoint.

    python3 bench/peers/recompute.py CASE DTYPE BATCH keep|again

Answers each line of its input: `bytes` with the growth of peak RSS over three steps, a number with the seconds of a step,
measured for so long. OMP_NUM_THREADS sets the threads.
"""
import math
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import models

TIMES, VOCABULARY, CLASSES = 4000, 1000, 5


class LstmInSpans(models.LstmClassifier):
    """All layers over one span of time after the other; each span is a checkpoint."""

    def forward(self, tokens):
        x, state = self.embedding(tokens), None
        length = math.ceil(x.shape[1] / math.isqrt(x.shape[1]))
        for span in x.split(length, dim=1):
            y, state = checkpoint(self.lstm, span, state, use_reentrant=False)
        return self.fc(y[:, -1])


class Step:
    def __init__(self, dtype, batch, again):
        torch.manual_seed(1)
        self.model = (LstmInSpans if again else models.LstmClassifier)(vocabulary=VOCABULARY)
        self.tokens = torch.randint(0, VOCABULARY, (batch, TIMES))
        self.label = torch.randint(0, CLASSES, (batch,))
        self.low = dtype == "bf16"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            loss = F.cross_entropy(self.model(self.tokens), self.label)
        loss.backward()
        self.optimizer.step()


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    case, dtype, batch, mode = sys.argv[1:]
    assert case == "lstm"
    step = Step(dtype, int(batch), mode == "again")
    before = peak_bytes()
    for _ in range(3):
        step()
    grown = peak_bytes() - before
    for line in sys.stdin:
        if line.strip() == "bytes":
            print(grown, flush=True)
            continue
        steps, begin = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - begin < float(line):
            step()
            steps += 1
        print((time.perf_counter() - begin) / steps, flush=True)


main()
