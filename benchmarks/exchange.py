"""All-reduce over processes of this machine with gloo, against the model of the exchange.

The model is ``latency + bytes / bandwidth``, fitted for each number of processes at the powers of
two, with equal weight of relative errors; it is checked at the sizes halfway between. Sizes are
measured in turns, in a new order in each round, so that other work on the machine meets them all
alike; small ones many times in a row. Each size is given with the median and the fastest of its
rounds; the model is of the one named by --of.

    python benchmarks/exchange.py [--rounds 40] [--of median]
"""

import argparse
import os
import random
import socket
import statistics
import time
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

FITTED = [2**n for n in range(18, 27)]
SIZES = sorted([*FITTED, *(3 * size // 2 for size in FITTED[:-1])])
IN_A_ROW = 2**24  # bytes that are exchanged for one measurement, in calls of one size
OF = {"fastest": min, "median": statistics.median}


def main() -> None:
    """Measure 2 and 4 processes, fit, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--of", choices=OF, default="median")
    options = parser.parse_args()
    for ranks in (2, 4):
        seen = measure(ranks, options.rounds)
        times = {size: OF[options.of](found) for size, found in seen.items()}
        latency_s, s_per_byte = fit_line({size: times[size] for size in FITTED})
        print(
            f"{ranks} processes, {options.of} of {options.rounds} rounds: latency "
            f"{1e3 * latency_s:.2f} ms, {1e-9 / s_per_byte:.2f} GB/s"
        )
        for size, found in seen.items():
            model = latency_s + s_per_byte * size
            use = "fitted " if size in FITTED else "checked"
            print(
                f"  {size / 2**20:6.2f} MiB  median {1e3 * statistics.median(found):8.2f} ms  "
                f"fastest {1e3 * min(found):8.2f} ms  model {1e3 * model:8.2f} ms  "
                f"{use} {model / times[size] - 1:+.1%}"
            )


def fit_line(times: dict[int, float]) -> tuple[float, float]:
    """Latency [s] and seconds per byte, with the least squares of relative errors."""
    sizes, seconds = np.array([*times]), np.array([*times.values()])
    s_per_byte, latency_s = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return float(latency_s), float(s_per_byte)


def measure(ranks: int, rounds: int) -> dict[int, list[float]]:
    """Seconds of an all-reduce by size, one for each round."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawning = get_context("spawn")
    found = spawning.SimpleQueue()
    started = [
        spawning.Process(target=_rank, args=(rank, ranks, port, rounds, found))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    times = found.get()
    for process in started:
        process.join()
    return times


def _rank(rank: int, ranks: int, port: int, rounds: int, found: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    gradients = {size: torch.zeros(size // 4) for size in SIZES}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    shuffle = random.Random(0).shuffle  # the same on all ranks
    order = list(SIZES)
    for turn in range(rounds + 1):
        shuffle(order)
        for size in order:
            calls = max(1, IN_A_ROW // size)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(gradients[size])
            took = (time.perf_counter() - began) / calls
            if turn:  # the first round makes the connections
                times[size].append(took)
    if rank == 0:
        found.put(times)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
