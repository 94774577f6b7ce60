"""The cheapest cut of a network in two, by augmenting paths (Dinic, Algorithm for solution of a problem of maximum flow
in a network with power estimation, 1970)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

NEVER = float("inf")
"""The capacity of an edge that is not to be cut."""


@dataclass(slots=True)
class Network:
    """Nodes are numbers from 0 on; `source` and `sink` are the first two."""

    source: int = 0
    sink: int = 1
    edges: list[list[int]] = field(default_factory=lambda: [[], []])
    """The numbers of the edges that leave each node; edge n ^ 1 is edge n backwards."""
    heads: list[int] = field(default_factory=list[int])
    free: list[float] = field(default_factory=list[float])

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: float, back: float = 0.0) -> None:
        """What it costs to have `tail` on the source's side and `head` on the sink's; `back`: the other way round."""
        if capacity <= 0 and back <= 0:
            return
        for at, to, room in ((tail, head, capacity), (head, tail, back)):
            self.edges[at].append(len(self.heads))
            self.heads.append(to)
            self.free.append(room)

    def source_side(self) -> set[int]:
        """The nodes on the source's side of a cheapest cut: of several such, the smallest side."""
        while True:
            levels = self._levels()
            if levels[self.sink] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            following = [0] * len(self.edges)
            while self._push(levels, following):
                pass

    def _levels(self) -> list[int]:
        """How far each node is from the source, over edges with room; -1: out of reach."""
        levels = [-1] * len(self.edges)
        levels[self.source] = 0
        waiting = deque([self.source])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                head = self.heads[edge]
                if self.free[edge] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def _push(self, levels: list[int], following: list[int]) -> bool:
        """Fill one path from the source to the sink, from level to level; False if there is none."""
        path: list[int] = []
        node = self.source
        while node != self.sink:
            if following[node] == len(self.edges[node]):
                if not path:
                    return False
                node = self.heads[path.pop() ^ 1]
                following[node] += 1
                continue
            edge = self.edges[node][following[node]]
            if self.free[edge] > 0 and levels[self.heads[edge]] == levels[node] + 1:
                path.append(edge)
                node = self.heads[edge]
            else:
                following[node] += 1
        room = min(self.free[edge] for edge in path)
        for edge in path:
            self.free[edge] -= room
            self.free[edge ^ 1] += room
        return True
