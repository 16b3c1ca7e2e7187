"""Time of one training iteration of N children on each engine, compared with plain PyTorch.

    python benchmarks/children.py [--device cpu | cuda] [--children 10] [--models resnet32 ...] [--profile]

Plain PyTorch is eager (in its fastest memory format, and on a batch made beforehand, which favours it), with
torch.compile, or with one process for each child. The engines include drawing, cropping and mirroring
the batches, the adaptive loss and the averages of the weights. On a GPU everything is bfloat16 autocast; on a CPU the
engines and the eager child have one thread, and the processes share all cores. Takes about eight minutes on a CPU.

Prints a table, and as its last line JSON with the ratios, hardware and versions.
"""

import argparse
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from common import images, last_line, members, seconds, table, wait

from lossalign.children import Optimisation, SequentialChildren, make_children
from lossalign.losses import AlignedLoss

SHAPES = {"mlp-16": ((1, 8, 8), 32), "mlp-64-64": ((30,), 128), "small-cnn": ((1, 8, 8), 32)}
CPU_MODELS = ["mlp-16", "mlp-64-64", "mlp-256-256", "small-cnn", "resnet8/8", "resnet8"]


def case(name):
    """Model, input shape and batch size by the name of a case; ``/8`` and ``/32`` say the side of the images."""
    model, _, side = name.partition("/")
    if side:
        return model, ((1, 8, 8), 32) if side == "8" else ((3, 32, 32), 128)
    return model, SHAPES.get(model, ((3, 32, 32), 128))


def plain_step(member, device, memory_format, compiled=False):
    """One iteration of one child in plain PyTorch, on a batch made beforehand."""
    model = member.model.to(device, memory_format=memory_format)
    inputs, targets = member.stream().next()
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    forward = torch.compile(model, mode="reduce-overhead") if compiled else model

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(forward(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def repeated(step, times):
    def work():
        for _ in range(times):
            step()

    return work


def eager(name, device):
    """The fastest eager step of one child."""
    model, (shape, batch) = case(name)
    formats = [torch.contiguous_format] + ([torch.channels_last] if len(shape) == 3 else [])
    data = images(shape)
    steps = {f: plain_step(members(model, data, batch, 1, device)[0], device, f) for f in formats}
    times = seconds({f: repeated(step, 10) for f, step in steps.items()}, device)
    return steps[min(times, key=times.get)]


def engines(name, children, device):
    """One iteration of N children on each engine, and of one child alone."""
    model, (shape, batch) = case(name)
    data, loss, optimisation = (
        images(shape),
        AlignedLoss(10).to(device),
        Optimisation(iterations=10_000, learning_rate=0.01, precision="bfloat16" if device == "cuda" else "float32"),
    )
    many = members(model, data, batch, children, device)
    phi = loss.spec.initial.expand(children, -1)
    works = {}
    if device == "cuda":
        one = make_children(many[:1], loss, optimisation, device=device)
        works["one compiled child"] = lambda n: one.advance(n, phi[:1])
        ours = make_children(many, loss, optimisation, device=device)
        works[f"auto: {ours.engine}"] = lambda n: ours.advance(n, phi)
        return works
    sequential = SequentialChildren(many, loss, optimisation, device)
    works["sequential"] = lambda n: sequential.advance(n, phi)
    for engine in ("vmap", "fused", "auto"):
        ours = make_children(many, loss, optimisation, engine=engine, device=device)
        label = f"auto: {ours.engine.split(',')[0]}" if engine == "auto" else engine
        works[label] = lambda n, ours=ours: ours.advance(n, phi)
    return works


def processes(name, children, device):
    """Seconds of one iteration when every child is a process of its own, all at once."""
    command = [sys.executable, __file__, "--device", device, "--models", name, "--as-one-child", str(time.time() + 40)]
    if device == "cpu":
        command[-1] = str(time.time() + 15)
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(children)]
    return max(float(process.communicate()[0].split()[-1]) for process in running)


def as_one_child(name, device, start):
    """The work of each process: wait for the others, train for five seconds, print the seconds of an iteration."""
    step = eager(name, device)
    time.sleep(max(0.0, start - time.time()))
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 5:
        step()
        done += 1
        wait(device)
    print((time.perf_counter() - began) / done)


def profile(work, device, iterations=5):
    """Print the kernels that take the most time."""
    from torch.profiler import ProfilerActivity, profile

    work(iterations)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work(iterations)
        wait(device)
    rows = sorted((e.device_time_total / 1e3 / iterations, e.count // iterations, e.key) for e in seen.key_averages())
    table("kernels, ms an iteration", [(f"{t:.3f}", n, key[:100]) for t, n, key in rows[:-25:-1]])
    print(f"  {sum(t for t, _, _ in rows):.2f} ms in all")


def measure(name, children, device, profiled=False):
    length = 20 if device == "cuda" else 2
    ours = engines(name, children, device)
    works = {"one eager child": repeated(eager(name, device), length)}
    if device == "cuda":
        model, (shape, batch) = case(name)
        one = members(model, images(shape), batch, 1, device)[0]
        step = plain_step(one, device, torch.channels_last, compiled=True)
        works["one child, torch.compile"] = repeated(step, length)
    works |= {label: (lambda work=work: work(length)) for label, work in ours.items()}
    times = {label: t / length for label, t in seconds(works, device).items()}
    if profiled and device == "cuda":
        profile(list(ours.values())[-1], device)
    times["one process for each child"] = processes(name, children, device)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--children", type=int, default=10)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--as-one-child", type=float)
    given = parser.parse_args()
    device = given.device
    if device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    models = given.models or (["resnet32"] if device == "cuda" else CPU_MODELS)
    if given.as_one_child:
        as_one_child(models[0], device, given.as_one_child)
        return
    results = {}
    for name in models:
        times = measure(name, given.children, device, given.profile)
        eager_time = times["one eager child"]
        base = times.get("one compiled child", times.get("sequential"))
        against = "one compiled child" if device == "cuda" else "sequential"
        rows = [("", "ms", "/ one eager", f"/ {against}")]
        rows += [(k, f"{1e3 * t:.2f}", f"{t / eager_time:.2f}", f"{t / base:.2f}") for k, t in times.items()]
        table(f"{name}, {given.children} children, one iteration", rows)
        results[name] = {
            k: {"ms": round(1e3 * t, 3), "/ one eager": round(t / eager_time, 3), f"/ {against}": round(t / base, 3)}
            for k, t in times.items()
        }
    last_line(device, children=given.children, results=results)


if __name__ == "__main__":
    main()
