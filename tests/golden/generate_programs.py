"""PyTorch's answers to random programs (tests/property/program.h), in f64.

    BONFIRE_PROPERTY_WRITE=/tmp/programs.txt test_property --gtest_filter='*PyTorch*'
    python3 generate_programs.py /tmp/programs.txt programs.json
"""

import json
import sys

import torch
import torch.nn.functional as F

MASK = (1 << 64) - 1
KEPT = 1000
SHAPES = [(4, 4), (4,), (4, 4), (4,), (4,)]


class Dice:
    def __init__(self, seed):
        self.state = (seed * 0x9E3779B97F4A7C15 + 0x1234567) & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def values(seed, stream, shape):
    dice = Dice(seed * 1000003 + stream)
    count = torch.Size(shape).numel()
    numbers = [(dice.next() % 8192 - 4096) / 4096 for _ in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def weighted_sum(tensor):
    numbers = tensor.detach().flatten()
    weights = 1 + 0.125 * (torch.arange(len(numbers), dtype=torch.float64) % 16)
    return float((numbers * weights).sum())


class Parameter:
    """A variable with versions: each update makes a new leaf, and a gradient of any of them is the variable's."""

    def __init__(self, value):
        self.requires_grad = True
        self.grad = None
        self.velocity = None
        self.leaves = []
        self.set(value)

    def set(self, value):
        self.now = value.detach().clone()
        self.leaf = None

    def read(self):
        if self.leaf is None or self.leaf.requires_grad != self.requires_grad:
            self.leaf = self.now.clone().requires_grad_(self.requires_grad)
            self.leaves.append(self.leaf)
        return self.leaf


class Program:
    def __init__(self, seed, lr, momentum, weight_decay):
        self.seed, self.lr, self.momentum, self.weight_decay = seed, lr, momentum, weight_decay
        self.blocks, self.statements = [], []
        self.parameters = [Parameter(values(seed, i, shape)) for i, shape in enumerate(SHAPES)]
        self.mean, self.variance = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
        self.inputs = [values(seed, 50 + i, (8, 4)) for i in range(3)]
        self.losses, self.kept, self.training, self.held, self.answer = {}, {}, True, None, []

    def norm(self, x):
        mean, variance = self.mean.clone(), self.variance.clone()
        scale, shift = self.parameters[3].read(), self.parameters[4].read()
        y = F.batch_norm(x, mean, variance, scale, shift, training=self.training, momentum=0.1, eps=1e-5)
        if self.training:
            self.mean, self.variance = mean.detach(), variance.detach()
        return y

    def apply(self, kind, a, b):
        read = lambda i: self.parameters[i].read()
        return [
            lambda: torch.tanh(a),
            lambda: torch.sigmoid(a),
            lambda: a + b,
            lambda: a - b,
            lambda: a * b,
            lambda: a @ read(0),
            lambda: a @ read(2),
            lambda: a + read(1),
            lambda: a * read(1),
            lambda: self.norm(a),
            lambda: a.detach(),
            lambda: a * 0.5,
        ][kind]()

    def forward(self, statement, source):
        with torch.set_grad_enabled(not statement["flag"]):
            made = [source]
            operand = lambda n: self.kept[n - KEPT] if n >= KEPT else made[n]
            for kind, a, b in statement["ops"]:
                made.append(self.apply(kind, operand(a), operand(b)))
            if statement["keep"] >= 0:
                self.kept[statement["index"]] = made[statement["keep"] + 1]
            return torch.tanh(made[-1]).square().mean()

    def backward(self, loss, retain):
        if not loss.requires_grad:
            return
        leaves = [(p, leaf) for p in self.parameters for leaf in p.leaves if leaf.requires_grad]
        grads = torch.autograd.grad(loss, [leaf for _, leaf in leaves], retain_graph=retain, allow_unused=True)
        for (parameter, _), grad in zip(leaves, grads):
            if grad is not None and parameter.requires_grad:
                parameter.grad = grad.clone() if parameter.grad is None else parameter.grad + grad

    def step(self):
        """torch.optim.SGD on copies, whose values become the next versions."""
        chosen = [p for p in self.parameters if p.grad is not None]
        copies = []
        for parameter in chosen:
            copy = torch.nn.Parameter(parameter.now.clone())
            copy.grad = parameter.grad.clone()
            copies.append(copy)
        if not copies:
            return
        optimizer = torch.optim.SGD(copies, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        for parameter, copy in zip(chosen, copies):
            if parameter.velocity is not None:
                optimizer.state[copy]["momentum_buffer"] = parameter.velocity.clone()
        optimizer.step()
        for parameter, copy in zip(chosen, copies):
            parameter.velocity = optimizer.state[copy].get("momentum_buffer") if self.momentum else None
            parameter.set(copy)

    def call(self, block, source):
        own = {}
        for statement in block:
            if statement["what"] == 0:
                own[statement["index"]] = self.forward(statement, source)
            elif statement["what"] == 1:
                self.backward(own[statement["index"]], statement["flag"])
            else:
                self.execute(statement)
        self.answer += [float(loss) for _, loss in sorted(own.items())]

    def grad_of(self, parameter):
        return -1000.0 if parameter.grad is None else weighted_sum(parameter.grad)

    def execute(self, s):
        what, index = s["what"], s["index"]
        parameter = self.parameters[index % len(self.parameters)]
        if what == 0:
            self.losses[index] = self.forward(s, self.inputs[s["input"]])
        elif what == 1:
            self.backward(self.losses[index], s["flag"])
        elif what == 2:
            self.answer.append(float(self.losses[index]))
        elif what == 3:
            self.losses.pop(index, None)
            self.kept.pop(index, None)
        elif what == 4:
            self.step()
        elif what == 5:
            for one in self.parameters:
                one.grad = None
        elif what == 6:
            self.training = s["flag"]
        elif what == 7:
            parameter.requires_grad = s["flag"]
        elif what == 8:
            parameter.set(values(self.seed, s["input"], SHAPES[index]))
        elif what == 9:
            self.held = parameter.now.clone()
        elif what == 10:
            self.answer.append(weighted_sum(self.held))
        elif what == 11:
            self.answer.append(self.grad_of(parameter))
        elif what == 12:
            self.call(self.blocks[index], self.inputs[s["input"]])

    def run(self):
        for statement in self.statements:
            self.execute(statement)
        self.answer += [weighted_sum(p.now) for p in self.parameters]
        self.answer += [weighted_sum(self.mean), weighted_sum(self.variance)]
        self.answer += [self.grad_of(p) for p in self.parameters]
        return [float(f"{number:.12g}") for number in self.answer]


def parse(line):
    words = line.split()
    what, index, source, flag, keep = map(int, words[:5])
    ops = [tuple(map(int, word.split(":"))) for word in words[5:]]
    return {"what": what, "index": index, "input": source, "flag": bool(flag), "keep": keep, "ops": ops}


def main(source, target):
    answers, program, part = [], None, None
    for line in open(source):
        words = line.split()
        if words[0] == "program":
            program = Program(int(words[1]), *map(float, words[2:]))
        elif words[0] == "define":
            program.blocks.append([])
            part = program.blocks[-1]
        elif words[0] == "begin":
            part = program.statements
        elif words[0] == "end":
            answers.append(program.run())
        else:
            part.append(parse(line))
    with open(target, "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")


main(*sys.argv[1:])
