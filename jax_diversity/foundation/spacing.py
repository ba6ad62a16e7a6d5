"""One weighted element after another, each the one that keeps its group nearest to its share."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64, Integer

from jax_diversity.foundation.progress import Advance, ignore

_STEPS_PER_ADVANCE = 1024


def space_groups(
    group: Integer[np.ndarray, " element"], weight: Int64[np.ndarray, " element"], advance: Advance = ignore
) -> Int64[np.ndarray, " element"]:
    """Elements one by one, each the one that leaves its own group nearest to its share of all weight.

    With T_c the weight of group c placed so far, S all weight placed, τ_c the group's share of all weight and l_d an
    element's weight, the next is

        argmin_d |(T_c + l_d) - τ_c (S + l_d)|,  c the group of d, ties to the lowest index.

    A step costs as many operations as there are groups, not elements: the rule asks each group for the element whose
    `(1 - τ_c) l_d` is nearest to what the group lacks, `τ_c S - T_c`, which is one of two neighbours among the
    group's elements sorted by weight. What is lacking is computed again at every step from whole numbers, in
    float64: no error adds up, and at 10^11 it is right to 10^-4.

    Args:
        group: each of 0 .. groups - 1 having an element.
        weight: whole numbers >= 0; elements without weight come first.
        advance: told the number of elements placed since it was last called.

    Example:
        >>> space_groups(np.array([0, 0, 1, 1]), np.array([2, 2, 2, 2])).tolist()
        [0, 2, 1, 3]
    """
    totals = np.bincount(group, weights=weight).astype(np.float64)
    total_weight = max(float(totals.sum()), 1.0)
    share = totals / total_weight
    growth = ((total_weight - totals) / total_weight)[group] * weight
    remaining = _Remaining(group, growth)
    placed, num_placed = np.zeros(len(share)), 0.0
    order = np.empty(len(weight), np.int64)
    for step in range(len(order)):
        element = remaining.nearest(share * num_placed - placed)
        order[step] = element
        own = int(group[element])
        placed[own] += weight[element]
        num_placed += float(weight[element])
        remaining.take(element, own, float(share[own] * num_placed - placed[own]))
        if (step + 1) % _STEPS_PER_ADVANCE == 0:
            advance(_STEPS_PER_ADVANCE)
    advance(len(order) % _STEPS_PER_ADVANCE)
    return order


class _Remaining:
    """The elements that are left, a chain of nodes for each group.

    A node is the elements of one group and one *growth*, by which each raises its group's excess. A group's
    nodes are linked by ascending growth and end in a node of infinite growth that holds nobody; the last node of
    all is everyone's beginning, of growth minus infinity. `above` is every group's first node whose growth is at
    least what the group lacks: the nearest is there or one before. As more is placed, groups lack more and
    their `above` moves up; only that of the group that was served moves down.

    Args:
        group: every element's group, each of 0 .. groups - 1 having one.
        growth: finite, >= 0.
    """

    def __init__(self, group: Int64[np.ndarray, " element"], growth: Float64[np.ndarray, " element"]) -> None:
        num_elements, num_groups = len(group), int(group.max(initial=-1)) + 1
        group = np.append(group, np.arange(num_groups))
        growth = np.append(growth, np.full(num_groups, np.inf))
        self.queue = np.lexsort((growth, group))  # stable: a node's elements by their index
        group, growth = group[self.queue], growth[self.queue]
        begins_group = np.diff(group, prepend=-1) != 0
        begins_node = begins_group | (np.diff(growth, prepend=-1.0) != 0)
        starts = np.flatnonzero(begins_node)
        num_nodes = len(starts)

        self.node_of = np.empty_like(self.queue)
        self.node_of[self.queue] = np.cumsum(begins_node) - 1
        self.place = starts.copy()
        self.end = np.append(starts[1:], len(self.queue))
        self.element = np.append(np.minimum(self.queue[starts], num_elements), num_elements)
        self.growth = np.append(growth[starts], -np.inf)
        self.after = np.arange(1, num_nodes + 2)
        self.before = np.where(begins_group[starts], num_nodes, np.arange(-1, num_nodes - 1))
        self.above = np.flatnonzero(begins_group[starts])
        self.group_starts = np.append(self.above, num_nodes)

    def nearest(self, lacking: Float64[np.ndarray, " group"]) -> int:
        """The element whose growth is nearest to what its group lacks, ties to the lowest index."""
        above = self.above
        behind = np.flatnonzero(self.growth[above] < lacking)
        above[behind] = self.after[above[behind]]
        # Most have arrived with one step; looking a place up costs more, but no more where it is far.
        for group in behind[self.growth[above[behind]] < lacking[behind]].tolist():
            above[group] = self._first_of_at_least(float(lacking[group]), group)
        nodes = np.stack([above, self.before[above]])
        misses = np.abs(self.growth[nodes] - lacking)
        return int(self.element[nodes[misses == misses.min()]].min())

    def take(self, element: int, group: int, lacking: float) -> None:
        """Remove a node's first element; `lacking` is what its group lacks from then on."""
        node = self.node_of[element]
        self.place[node] += 1
        if self.place[node] < self.end[node]:
            self.element[node] = self.queue[self.place[node]]
        else:
            before, after = self.before[node], self.after[node]
            self.after[before], self.before[after] = after, before
        self.above[group] = self._first_of_at_least(lacking, group)

    def _first_of_at_least(self, growth: float, group: int) -> int:
        """A group's first node that holds somebody (or is its end) and is of at least some growth."""
        start, end = self.group_starts[group], self.group_starts[group + 1]
        node = int(start + np.searchsorted(self.growth[start:end], growth))
        while self.place[node] == self.end[node]:
            # An empty node's link still leads up; halving the way keeps the next walk short.
            after = int(self.after[node])
            if self.place[after] == self.end[after]:
                self.after[node] = self.after[after]
            node = after
        return node
