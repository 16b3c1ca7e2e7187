import torch

import lossalign as la
from lossalign.data import load_digits

digits = load_digits()
x, y = digits.inputs, digits.targets
rare = torch.where(y < 5, 1.0, 0.1)  # train on ten times fewer images of 5 … 9
val, pool = torch.arange(400), torch.arange(400, 1797)
train = pool[torch.rand(len(pool), generator=torch.Generator().manual_seed(0)) < rare[pool]]
loader = torch.utils.data.DataLoader(list(zip(x[train], y[train], strict=True)), batch_size=32, shuffle=True)
val_loader = torch.utils.data.DataLoader(list(zip(x[val], y[val], strict=True)), batch_size=400)

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
optimizer, epochs = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 20
loss_of, metric = la.AlignedLoss(10), la.metrics.BalancedError()
aligner = la.Aligner(loss_of, metric, val_loader, len(loader) * epochs, class_counts=y[train].bincount())

for _ in range(epochs):
    for inputs, targets in loader:
        loss = aligner(model(inputs), targets)  # the mean loss under today's Φ
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        aligner.step(model)  # every K iterations: measure, and move Φ
model.load_state_dict(aligner.best_state_dict())
decision = aligner.decision()  # how to decide for the metric
print(f"loss {loss:.3f}, offsets {[round(v, 1) for v in aligner.phi.tolist()]}, decision {decision.chosen}")
