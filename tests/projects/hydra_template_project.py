"""lightning-hydra-template: MNIST's files, of made-up images that are lighter for higher digits."""

import random
import struct


def write_mnist(folder):
    """Files as torchvision has downloaded and unpacked them."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for split, num in {"train": 600, "t10k": 200}.items():
        labels = [index % 10 for index in range(num)]
        pixels = bytes(20 * label + draw.randrange(60) for label in labels for _ in range(28 * 28))
        images = struct.pack(">4i", 2051, num, 28, 28) + pixels
        (folder / f"{split}-images-idx3-ubyte").write_bytes(images)
        numbers = struct.pack(">2i", 2049, num) + bytes(labels)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(numbers)
