# torchrun --standalone --nproc-per-node 2 examples/own_loop_ddp.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lossalign as la
from lossalign.data import load_digits

if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
else:  # one process, to try it
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
digits = load_digits()
val, train = (TensorDataset(digits.inputs[part], digits.targets[part]) for part in (slice(400), slice(400, None)))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
val_loader = DataLoader(val, batch_size=200, sampler=DistributedSampler(val, shuffle=False))  # each rank a part

network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
model = DistributedDataParallel(network)
optimizer, epochs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 5
aligner = la.Aligner(
    la.AlignedLoss(10), la.metrics.BalancedError(), val_loader, total_steps=len(loader) * epochs, val_sharded=True
)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = aligner(model(inputs), targets)  # Φ is the same on all ranks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        aligner.step(model)  # the metric of the whole validation set
network.load_state_dict(aligner.best_state_dict())
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()}: offsets {[round(v, 1) for v in aligner.phi.tolist()]}",
    flush=True,
)
dist.barrier()
dist.destroy_process_group()
