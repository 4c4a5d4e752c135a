"""torchvision's data loading for the cases of bench/data.cpp.

    python3 bench/peers/data.py FOLDER pil|decode_jpeg

Answers each line of its input (seconds to measure for) with images a second of processor time: a folder
of JPEG files, RandomResizedCrop 224, horizontal flip, uint8 batches of 64.
"""
import sys
import time

import torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2


def open_folder(folder, how):
    steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    if how == "pil":
        return datasets.ImageFolder(folder, v2.Compose(steps + [v2.PILToTensor()]))
    return datasets.ImageFolder(folder, v2.Compose(steps),
                                loader=lambda path: decode_jpeg(read_file(path), mode=ImageReadMode.RGB))


def batches(loader):
    while True:
        yield from loader


def main():
    torch.set_num_threads(1)
    loader = DataLoader(open_folder(*sys.argv[1:3]), batch_size=64, shuffle=True, drop_last=True)
    source = batches(loader)
    next(source)
    for line in sys.stdin:
        images, begin = 0, time.process_time()
        while images == 0 or time.process_time() - begin < float(line):
            images += next(source)[0].shape[0]
        print(images / (time.process_time() - begin), flush=True)


if __name__ == "__main__":
    main()
