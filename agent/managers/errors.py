"""What the managers cannot serve, and why; each error carries its facts as data."""

from __future__ import annotations


class ManagerError(Exception):
    """A manager cannot do what it was asked; `remedy` says what would help."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class NodeDistancesError(ManagerError):
    """`prefer-closest-numa-nodes` needs distances that the host does not report."""

    def __init__(self, nodes: tuple[int, ...]) -> None:
        self.nodes = nodes
        super().__init__(
            "topology manager policy option prefer-closest-numa-nodes: no distances are known for"
            f" NUMA nodes {', '.join(map(str, nodes))}",
            "leave the option out, or see that the host's firmware has a SLIT table"
            " (/sys/devices/system/node/node*/distance)",
        )
