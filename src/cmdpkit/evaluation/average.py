"""Long-run averages: how often a policy visits each state in the long run.

The chain of a policy ends in one of its recurrent classes and then visits the states of that class with fixed
frequencies, periodic or not. The long-run distribution from the start is the mixture of these, weighted by the
probabilities of ending in each class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array, ConstraintArray, StateArray
from cmdpkit.evaluation.chain import mixed_chain
from cmdpkit.evaluation.factors import LOST, lu_without_differences
from cmdpkit.model import CMDP, check_model
from cmdpkit.policy import MixturePolicy, as_policy

DENSE = 200
"""Up to this many states a dense solver is as fast as a sparse one."""


def long_run_averages(cmdp: CMDP, policy: Any) -> tuple[float, ConstraintArray]:
    """Long-run averages per step, from the initial distribution: of the objective, and of every constraint's quantity.

    A limit with `per_step=True` bounds an average that is weighted by the discount, which counts early steps more. This
    is the average over a long time of the same policy, without any discount.

    Args:
        cmdp: the model.
        policy: a `TabularPolicy`, an (S, A) array of probabilities, or a `MixturePolicy`, whose averages are mixed.

    Example:
        >>> import cmdpkit as ck
        >>> model = ck.problems.wireless()
        >>> result = ck.solve(model)
        >>> averages = ck.long_run_averages(model, result.policy)[1]
        >>> print(result.constraint_values.round(3), averages.round(3))
        [1.5] [1.633]
    """
    check_model(cmdp)
    if cmdp.criterion in ("total", "horizon"):
        raise ValueError(f"the model's criterion is the {cmdp.value_name}: after the end there is no long run")
    if isinstance(policy, MixturePolicy):
        parts = [long_run_averages(cmdp, part) for part in policy.policies]
        objective = sum(w * part[0] for w, part in zip(policy.weights, parts, strict=True))
        return float(objective), np.asarray(policy.weights @ np.array([part[1] for part in parts]))
    pi = as_policy(policy, cmdp.pairs).pi
    visits = long_run_distribution(mixed_chain(cmdp, pi), cmdp.initial)
    played = (cmdp.pairs.over(visits) * pi).ravel()
    tables = (cmdp.objective, *(np.asarray(c.values) for c in cmdp.constraints))
    quantities = np.array([table.ravel() @ played for table in tables])
    return float(quantities[0]), quantities[1:]


def long_run_distribution(chain: Any, initial: StateArray) -> StateArray:
    """(S,) the share of time spent in each state in the long run, from this distribution of the first state."""
    matrix = _positive(chain)
    count, label = recurrent_classes(matrix)
    recurrent = label >= 0
    arrived = np.where(recurrent, initial, 0.0)
    if not recurrent.all():
        inside, outside = np.flatnonzero(~recurrent), np.flatnonzero(recurrent)
        visits = _visits(matrix[inside][:, inside], initial[inside], matrix[inside][:, outside].sum(axis=1))
        arrived[outside] += matrix[inside][:, outside].T @ visits
    weights = np.bincount(label[recurrent], arrived[recurrent], minlength=count)
    shares = np.zeros(initial.size)
    for k in np.flatnonzero(weights > 0.0):
        states = np.flatnonzero(label == k)
        shares[states] = weights[k] * stationary(matrix[states][:, states])
    return shares


def recurrent_classes(chain: Any, least: float = 0.0) -> tuple[int, Any]:
    """The number of recurrent classes, and (S,) the class of every state, −1 for transient ones.

    With `least`, moves of smaller probability do not count.
    """
    from scipy.sparse.csgraph import connected_components

    if not sp.issparse(chain) and chain.min() > least:
        return 1, np.zeros(chain.shape[0], dtype=np.int64)
    matrix = _positive(chain, least)
    count, component = connected_components(matrix, directed=True, connection="strong")
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    leaves = component[rows] != component[matrix.indices]
    closed = np.ones(count, dtype=bool)
    closed[component[rows[leaves]]] = False  # a class that can be left is not recurrent
    number = np.where(closed, np.cumsum(closed) - 1, -1)
    return int(closed.sum()), number[component]


def reachable(chain: Any, initial: StateArray) -> Any:
    """(S,) booleans: the states that can be reached from a distribution of the first state."""
    from scipy.sparse.csgraph import breadth_first_order

    matrix, starts = _positive(chain), np.flatnonzero(initial > 0.0)
    # One more state, from which all first states can be reached
    states = matrix.shape[0]
    indices = np.append(matrix.indices, starts)
    indptr = np.append(matrix.indptr, indices.size)
    graph = sp.csr_array((np.ones(indices.size), indices, indptr), shape=(states + 1, states + 1))
    found = np.zeros(states + 1, dtype=bool)
    found[breadth_first_order(graph, states, directed=True, return_predecessors=False)] = True
    return found[:states]


def _positive(chain: Any, least: float = 0.0) -> Any:
    """The chain as a CSR matrix in which every move that counts is stored once, as graph algorithms need it."""
    matrix = sp.csr_array(chain)
    if not matrix.has_canonical_format or (matrix.nnz and matrix.data.min() <= least):
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.data[matrix.data <= least] = 0.0
        matrix.eliminate_zeros()
    return matrix


def stationary(chain: Any) -> Array:
    """(n,) the stationary distribution of an irreducible chain: μ = μ P, Σ μ = 1."""
    n = chain.shape[0]
    if n == 1:
        return np.ones(1)
    # Visits to the others between two visits to state 0; then normalised
    rest = _visits(chain[1:, 1:], chain[[0], 1:].toarray().ravel(), chain[1:, [0]].toarray().ravel())
    visits = np.append(1.0, rest)
    return np.asarray(visits / visits.sum())


def _visits(among: Any, first: Array, leave: Array) -> Array:
    """(n,) x = b + x P, visits to transient states before they are left, given the probabilities of leaving them."""
    from scipy.sparse.linalg import splu

    n = among.shape[0]
    if n <= DENSE:
        return np.maximum(lu_without_differences(among, leave)[1](first), 0.0)
    try:
        factors = splu((sp.eye_array(n) - among).T.tocsc())
    except RuntimeError as error:  # exactly singular
        raise ArithmeticError(LOST) from error
    return np.asarray(np.maximum(factors.solve(first), 0.0))
