"""The parameters Φ of a loss, which the controller moves, in named groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lossalign.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """A group of loss parameters with the same range and β.

    Args:
        name: the group's name, e.g. ``"offsets"``.
        labels: one label for each parameter; their number is the size of the group.
        initial: Φ_0, one number for all or one for each.
        low: smallest value a parameter may take.
        high: largest value a parameter may take.
        beta: β, how far one action moves a parameter.
        classes: for each parameter the two classes ``(i, j)`` it belongs to, ``(i, i)`` if it belongs to one class;
            ``None`` if the group does not belong to classes.
        relative: whether only differences within the group matter: adding a constant to all parameters changes nothing.
        reading: what a direction means, shown in figures, e.g. ``"higher favours the class"``.

    Example:
        >>> ParameterGroup(name="temperature", labels=("τ",), initial=1.0, low=0.5, high=2.0, beta=0.1).size
        1
    """

    name: str
    labels: tuple[str, ...]
    initial: float | tuple[float, ...]
    low: float
    high: float
    beta: float
    classes: tuple[tuple[int, int], ...] | None = field(default=None, repr=False)
    relative: bool = field(default=False, repr=False)
    reading: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.labels:
            raise InputError(f"ParameterGroup {self.name!r}: labels is empty; name at least one parameter.")
        if not self.low < self.high:
            raise InputError(f"ParameterGroup {self.name!r}: low={self.low} must be below high={self.high}.")
        if not 0 < self.beta <= self.high - self.low:
            raise InputError(
                f"ParameterGroup {self.name!r}: beta={self.beta} must be positive and at most high - low = "
                f"{self.high - self.low}."
            )
        initial = self.initial if isinstance(self.initial, tuple) else (self.initial,) * self.size
        if len(initial) != self.size:
            raise InputError(
                f"ParameterGroup {self.name!r}: initial has {len(initial)} values for {self.size} labels; give one "
                "number for all or one for each."
            )
        if not all(self.low <= value <= self.high for value in initial):
            raise InputError(
                f"ParameterGroup {self.name!r}: initial must lie in [{self.low}, {self.high}]; widen low and high or "
                "move initial."
            )
        if self.classes is not None and len(self.classes) != self.size:
            raise InputError(f"ParameterGroup {self.name!r}: classes needs one pair for each of {self.size} labels.")

    @property
    def size(self) -> int:
        """How many parameters the group holds."""
        return len(self.labels)


@dataclass(frozen=True)
class ParameterSpec:
    """All parameters of a loss as one vector Φ [P]: the groups one after another.

    Example:
        >>> group = ParameterGroup(name="offsets", labels=("cat", "dog"), initial=0.0, low=-3.0, high=3.0, beta=0.3)
        >>> spec = ParameterSpec((group,))
        >>> spec.size, spec.initial.tolist(), spec.slices
        (2, [0.0, 0.0], {'offsets': slice(0, 2, None)})
    """

    groups: tuple[ParameterGroup, ...]

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if not names or len(set(names)) != len(names):
            raise InputError(f"A loss needs at least one parameter group, each with its own name; got {names}.")

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return sum(group.size for group in self.groups)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of Φ that each group takes."""
        slices, start = {}, 0
        for group in self.groups:
            slices[group.name] = slice(start, start + group.size)
            start += group.size
        return slices

    @cached_property
    def initial(self) -> Tensor:
        """Φ_0 [P]."""
        parts = [torch.as_tensor(g.initial, dtype=torch.float32).expand(g.size) for g in self.groups]
        return torch.cat(parts)

    @cached_property
    def low(self) -> Tensor:
        """Smallest values [P]."""
        return torch.cat([torch.full((g.size,), float(g.low)) for g in self.groups])

    @cached_property
    def high(self) -> Tensor:
        """Largest values [P]."""
        return torch.cat([torch.full((g.size,), float(g.high)) for g in self.groups])

    @cached_property
    def beta(self) -> Tensor:
        """β of each parameter [P]."""
        return torch.cat([torch.full((g.size,), float(g.beta)) for g in self.groups])

    @cached_property
    def classes(self) -> Tensor:
        """Classes (i, j) that each parameter belongs to [P, 2]; −1 where it belongs to none."""
        parts = [
            torch.tensor(g.classes) if g.classes is not None else torch.full((g.size, 2), -1, dtype=torch.long)
            for g in self.groups
        ]
        return torch.cat(parts)

    def select(self, names: Iterable[str]) -> Tensor:
        """Positions in Φ of the named groups, in the order of Φ.

        Example:
            >>> a = ParameterGroup(name="a", labels=("x",), initial=0.0, low=-1.0, high=1.0, beta=0.1)
            >>> b = ParameterGroup(name="b", labels=("y", "z"), initial=0.0, low=-1.0, high=1.0, beta=0.1)
            >>> ParameterSpec((a, b)).select(["b"])
            tensor([1, 2])
        """
        wanted = set(names)
        unknown = wanted - set(self.slices)
        if unknown or not wanted:
            raise InputError(f"groups={sorted(wanted)}: choose from {list(self.slices)}, which this loss has.")
        return torch.cat([torch.arange(s.start, s.stop) for name, s in self.slices.items() if name in wanted])

    def check(self, phi: Tensor) -> None:
        """Raise ``InputError`` if Φ has the wrong shape, is out of range, or is not finite."""
        if phi.shape[-1:] != (self.size,):
            raise InputError(f"phi has shape {tuple(phi.shape)}; its last axis must hold {self.size} parameters.")
        low, high = self.low.to(phi.device), self.high.to(phi.device)
        outside = ~((phi >= low - 1e-6) & (phi <= high + 1e-6))
        if outside.any():
            at = int(outside.reshape(-1, self.size).any(0).nonzero()[0])
            label = [label for group in self.groups for label in group.labels][at]
            value = float(phi.reshape(-1, self.size)[:, at][outside.reshape(-1, self.size)[:, at]][0])
            raise InputError(
                f"phi: parameter {label!r} is {value:g}, outside its range [{low[at]:g}, {high[at]:g}]; clip it with "
                "phi.clamp(spec.low, spec.high)."
            )
