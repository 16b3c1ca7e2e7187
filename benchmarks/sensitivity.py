"""What the metric's sensitivity costs: seconds of one child against one scoring of its metric, by number of classes.

python benchmarks/sensitivity.py [SAMPLES]
"""

import json
import statistics
import sys
import time

import torch

from lossalign.metrics import AUCPR, BalancedError, class_sensitivity


def seconds(work, rounds):
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main():
    torch.set_num_threads(1)
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    rows = []
    for metric, sizes in ((BalancedError(), (10, 100, 300)), (AUCPR(), (10, 30))):
        for classes in sizes:
            draw = torch.Generator().manual_seed(0)
            outputs = torch.randn(samples, classes, generator=draw)
            targets = torch.randint(classes, (samples,), generator=draw)
            once = seconds(lambda o=outputs, t=targets, m=metric: m(o, t), 5)
            all_ = seconds(lambda o=outputs, t=targets, m=metric: class_sensitivity(m, o, t), 3)
            rows.append(
                {"metric": metric.name, "classes": classes, "ms": round(1e3 * all_, 1), "ratio": round(all_ / once, 1)}
            )
            print(f"{metric.name:16} {classes:5} classes   {1e3 * all_:8.1f} ms   {all_ / once:7.1f} × one scoring")
    print(json.dumps({"samples": samples, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
