"""The MNIST CNN on an IDX data set in PyTorch, as `bonfire train data=FOLDER optimizer=adamw lr=0.001 epochs=2 seed=SEED`
trains it: prints the accuracy on the test images.

    python3 bench/peers/accuracy.py FOLDER SEED
"""

import gzip
import sys

import numpy as np
import torch
from torch import nn


def read(folder, name, header):
    with gzip.open(f"{folder}/{name}.gz") as file:
        return torch.from_numpy(np.frombuffer(file.read(), dtype=np.uint8, offset=header).copy())


def images_and_labels(folder, part):
    images = read(folder, f"{part}-images-idx3-ubyte", 16).view(-1, 1, 28, 28).float() / 255
    return images, read(folder, f"{part}-labels-idx1-ubyte", 8).long()


def main(folder, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    train, labels = images_and_labels(folder, "train")
    test, expected = images_and_labels(folder, "t10k")
    mean, deviation = train.mean(), train.std()
    train, test = (train - mean) / deviation, (test - mean) / deviation
    model = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0)
    batch = 64
    for _ in range(2):
        order = torch.randperm(len(train))
        for first in range(0, len(train) - batch + 1, batch):
            chosen = order[first:first + batch]
            loss = nn.functional.cross_entropy(model(train[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        print(f"{100 * (model(test).argmax(1) == expected).float().mean().item():.2f}")


main(sys.argv[1], int(sys.argv[2]))
