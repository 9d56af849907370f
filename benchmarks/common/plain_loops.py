"""What people write first: one head trained with autograd, as the authors of ImPULSeS train it."""

from collections.abc import Iterable

import torch

BATCH = 256


def loss_of(margins, s, prior):
    """Imbalanced nnPU of one batch, as its authors step on it."""
    positive = s.float()
    n_p, n_u = positive.sum().clamp(min=1), (1 - positive).sum().clamp(min=1)
    upper = 0.5 * (torch.sigmoid(-margins) * positive).sum() / n_p
    on_u = (torch.sigmoid(margins) * (1 - positive)).sum() / n_u
    lower = 0.5 / (1 - prior) * (on_u - prior * (torch.sigmoid(margins) * positive).sum() / n_p)
    return upper + lower if lower >= 0 else -lower


def slices_loop(X, s, prior, epochs):
    """One head with autograd, over contiguous slices of float32 rows."""
    return _trained(list(zip(X.split(BATCH), s.split(BATCH), strict=True)), X.shape[1], prior, epochs)


def loader_loop(X, s, prior, epochs):
    """The same through a shuffling DataLoader, as the authors do."""
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, s), batch_size=BATCH, shuffle=True)
    return _trained(loader, X.shape[1], prior, epochs)


def _trained(batches: Iterable, dim: int, prior: float, epochs: int) -> torch.nn.Module:
    head = torch.nn.Linear(dim, 1)
    adam = torch.optim.Adam(head.parameters(), lr=3e-4)
    for _ in range(epochs):
        for rows, labels in batches:
            adam.zero_grad()
            loss_of(head(rows)[:, 0], labels, prior).backward()
            adam.step()
    return head
