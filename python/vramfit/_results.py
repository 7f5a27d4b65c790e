"""What the commands answer: the figures that most callers want, and the whole object as `json`."""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Phase:
    """Peaks of PyTorch's allocator in one phase of a step."""

    phase: str  # "load", "forward", "backward", "optimizer", ...
    step: str  # "first" or "steady"
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclasses.dataclass(frozen=True)
class Rank:
    """Ranks with equal figures share one."""

    first: int
    last: int
    total_bytes: int  # what the GPU would show for the process at its peak
    upper_bound_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phases: Tuple[Phase, ...]


@dataclasses.dataclass(frozen=True)
class Result:
    """What all answers have."""

    json: Dict[str, Any] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"

    @property
    def verdict(self) -> str:
        """ "fits", "at_risk", "does_not_fit", ..."""
        return str(self.json["verdict"])

    @property
    def fits(self) -> bool:
        return bool(self.json["fits"])

    @property
    def why(self) -> str:
        """One sentence."""
        return str(self.json["why"])

    @property
    def capacity_bytes(self) -> int:
        """Memory of one GPU."""
        return int(self.json["capacity_bytes"])

    @property
    def ranks(self) -> List[Rank]:
        return [_rank(entry) for entry in self.json.get("ranks", [])]

    @property
    def worst(self) -> Optional[Rank]:
        """The rank that needs most; None if there are no figures."""
        index, ranks = self.json.get("worst", -1), self.json.get("ranks", [])
        return _rank(ranks[index]) if ranks and 0 <= index < len(ranks) else None

    @property
    def total_bytes(self) -> int:
        """What the fullest GPU would show; 0 without figures."""
        worst = self.worst
        return worst.total_bytes if worst else 0


@dataclasses.dataclass(frozen=True)
class Estimate(Result):
    @property
    def job(self) -> Dict[str, Any]:
        """Every choice of the job, given or by default."""
        return dict(self.json["job"])

    @property
    def assumptions(self) -> List[str]:
        return list(self.json["assumptions"])


@dataclasses.dataclass(frozen=True)
class Plan(Estimate):
    @property
    def tokens_per_second(self) -> Optional[float]:
        """None if nothing fits."""
        return float(self.json["prediction"]["tokens_per_second"]) if self.fits else None

    @property
    def alternatives(self) -> List[Dict[str, Any]]:
        """Faster setups and why they were not chosen."""
        return list(self.json["alternatives"])


@dataclasses.dataclass(frozen=True)
class Rehearsal(Result):
    @property
    def exit_code(self) -> int:
        """Of the program that was rehearsed; -1 after a signal."""
        return int(self.json["exit_code"])

    @property
    def values_certain(self) -> bool:
        """False: the program read values that kernels would have computed (docs/values.md)."""
        return bool(self.json["values"]["certain"])

    @property
    def notes(self) -> List[str]:
        return list(self.json["notes"])


def _rank(entry: Dict[str, Any]) -> Rank:
    phases = tuple(Phase(**{field.name: phase[field.name] for field in dataclasses.fields(Phase)}) for phase in entry["phases"])
    first, last = entry["ranks"]
    figures = {name: entry[name] for name in ("total_bytes", "upper_bound_bytes", "peak_allocated_bytes", "peak_reserved_bytes")}
    return Rank(first=first, last=last, phases=phases, **figures)
