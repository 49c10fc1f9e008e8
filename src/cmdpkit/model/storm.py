"""Models from the probabilistic model checker Storm, and to its DRN files."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from cmdpkit.checks import Array
from cmdpkit.files import PathLike, write_whole
from cmdpkit.model.listing import Parts
from cmdpkit.model.references import initial_distribution, limit_columns, named_objective, suggestion

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP

FORMATS = "PRISM (.prism, .nm, .pm, .sm), JANI (.jani), DRN (.drn) and UMB (.umb)"


def from_storm(
    cls: type[CMDP],
    source: Any,
    options: Mapping[str, Any],
    *,
    reward: str | None,
    cost: str | None,
    initial: Any,
    constants: Any,
) -> CMDP:
    """See `CMDP.from_storm`."""
    if (reward is None) == (cost is None):
        raise ValueError(
            "name the reward model to maximise as reward=, or the one to minimise as cost=: one of the two"
        )
    model = _read(source, constants) if isinstance(source, (str, os.PathLike)) else source
    _check_kind(model)
    matrix, first = _transitions(model)
    state = np.repeat(np.arange(first.size - 1), np.diff(first))
    action, action_labels = _actions(model, first)
    order = np.lexsort([action, state])  # the actions of a state in one order everywhere
    objective = str(reward if reward is not None else cost)
    names = dict.fromkeys([objective, *limit_columns(options["constraints"])])
    parts = Parts(
        matrix[order],
        state,
        action[order],
        {name: _quantity(model, name, matrix, state)[order] for name in names},
        first.size - 1,
        len(action_labels),
        _state_labels(model),
        action_labels,
    )
    start = _initial(model) if initial is None else initial
    distribution = initial_distribution(start, parts.states, parts.state_labels if initial is not None else None)
    return cls(**parts.arguments(objective, reward is not None, distribution, named_objective(options, objective)))


def _read(path: PathLike, constants: Any) -> Any:
    """Build the sparse model of a file, with all reward models, labels and names."""
    try:
        import stormpy
    except ImportError as error:
        raise ImportError("reading models of Storm needs stormpy 2: pip install 'cmdpkit[storm]'") from error

    if not Path(path).exists():
        raise FileNotFoundError(f"no such file: {path}")
    kind = Path(path).suffix.lower()
    if constants is not None and kind in (".drn", ".umb"):
        raise ValueError(f"constants are for PRISM and JANI files; {path} has none")
    try:
        if kind == ".drn":
            options = stormpy.io.DirectEncodingParserOptions()
            options.build_choice_labeling = True
            return stormpy.build_model_from_drn(path, options=options)
        if kind == ".umb":
            return stormpy.build_model_from_umb(path)
        if kind == ".jani":
            program, _ = stormpy.parse_jani_model(path)
        elif kind in (".prism", ".nm", ".pm", ".sm"):
            program = stormpy.parse_prism_program(path)
        else:
            raise ValueError(f"{path} is not a file that Storm reads, judging by its name; it reads {FORMATS}")
        if constants is not None:
            program, _ = stormpy.instantiate_constants(program, constants)
        return stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
    except (stormpy.exceptions.StormError, RuntimeError) as error:
        raise ValueError(f"Storm cannot read {path}: {error}") from error


def _check_kind(model: Any) -> None:
    if not hasattr(model, "transition_matrix") or not hasattr(model, "model_type"):
        raise TypeError(f"a path or a sparse model of stormpy is needed, not {type(model).__name__}")
    kind = str(model.model_type).rpartition(".")[2]
    if kind not in ("MDP", "DTMC"):
        raise ValueError(f"the model is a {kind}; a CMDP can be made from an MDP or a DTMC")
    if model.has_parameters:
        raise ValueError("the model has parameters; give them values before, with constants= or stormpy")
    if "Interval" in type(model).__name__:
        raise ValueError("the probabilities of the model are intervals; a CMDP needs single numbers")


def _transitions(model: Any) -> tuple[Any, Any]:
    """The transitions of all choices (N, S), and where the choices of each state begin (S + 1,)."""
    matrix, count = _rows(model.transition_matrix, model.nr_states)
    first = getattr(model, "nondeterministic_choice_indices", range(count + 1))  # a Markov chain has one per state
    return matrix, np.array(list(first), dtype=np.int64)


def _rows(rows: Any, states: int) -> tuple[Any, int]:
    """A matrix of Storm as CSR, and its number of rows."""
    indptr = np.zeros(rows.nr_rows + 1, dtype=np.int64)
    indices, data = [], []
    for choice in range(rows.nr_rows):
        for entry in rows.get_row(choice):
            indices.append(entry.column)
            data.append(float(entry.value))
        indptr[choice + 1] = len(indices)
    return sp.csr_array((data, indices, indptr), shape=(rows.nr_rows, states)), int(rows.nr_rows)


def _actions(model: Any, first: Any) -> tuple[Any, tuple[str, ...]]:
    """The action of each choice: its label, or its position among the choices of its state.

    A label that a state has more than once is numbered from its second choice on.
    """
    labelling = model.choice_labeling if model.has_choice_labeling() else None
    index: dict[str, int] = {}
    actions = []
    for begin, end in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        used: dict[str, int] = {}
        for choice in range(begin, end):
            found = "+".join(sorted(labelling.get_labels_of_choice(choice))) if labelling is not None else ""
            label = found or f"choice {choice - begin}"
            used[label] = used.get(label, 0) + 1
            label = label if used[label] == 1 else f"{label} ({used[label]})"
            actions.append(index.setdefault(label, len(index)))
    return np.array(actions, dtype=np.int64), tuple(index)


def _quantity(model: Any, name: str, matrix: Any, state: Any) -> Array:
    """A reward model, added up per choice, or a label: 1 in the states that have it, otherwise 0."""
    rewards, labels = model.reward_models, model.labeling.get_labels()
    if name in rewards and name in labels:
        raise ValueError(f"{name!r} is a reward model and a label; rename one of them in the model")
    if name in labels:
        inside = np.zeros(model.nr_states)
        inside[list(model.labeling.get_states(name))] = 1.0
        return np.asarray(inside[state])
    if name not in rewards:
        known = [*sorted(rewards), *sorted(labels)]
        raise ValueError(f"there is no reward model or label {name!r}; {suggestion(name, known, 'names')}")
    found = rewards[name]
    total = np.zeros(state.size)
    if found.has_state_rewards:
        total += np.array([float(value) for value in found.state_rewards])[state]
    if found.has_state_action_rewards:
        total += np.array([float(value) for value in found.state_action_rewards])
    if found.has_transition_rewards:
        earned, _ = _rows(found.transition_rewards, model.nr_states)
        total += np.asarray(matrix.multiply(earned).sum(axis=1)).ravel()
    return total


def _state_labels(model: Any) -> tuple[str, ...] | None:
    """The values of a state's variables, as in "x=1, y=2"; None if there are none or states share them."""
    if not model.has_state_valuations():
        return None
    valuations = model.state_valuations
    # Rewards of JANI files are variables as well, of real numbers
    variables = [v for v in valuations.get_all_variables() if v.has_integer_type() or v.has_boolean_type()]
    columns = [[str(value) for value in valuations.get_values_states(variable)] for variable in variables]
    names = [variable.name for variable in variables]
    labels = tuple(
        ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        for values in zip(*columns, strict=True)
    )
    return labels if len(set(labels)) == len(labels) == model.nr_states else None


def _initial(model: Any) -> int:
    if len(model.initial_states) != 1:
        raise ValueError(f"the model has {len(model.initial_states)} initial states; choose by initial=")
    return int(model.initial_states[0])


# -- DRN files ---------------------------------------------------------------------------------------------------------


def to_drn(cmdp: CMDP, path: PathLike, initial: Any = None) -> None:
    """See `CMDP.to_drn`."""
    distribution = cmdp.initial if initial is None else initial_distribution(initial, cmdp.states, cmdp.state_labels)
    start = np.flatnonzero(distribution)
    if start.size != 1:
        raise ValueError(
            f"a DRN file has one initial state, but the initial distribution has {start.size}; choose one, as in "
            "to_drn(path, initial=0)"
        )
    names = ["reward" if cmdp.maximise else "cost", *cmdp.names]
    rewards = _words(names, "limits")
    actions = _words(cmdp.action_labels if cmdp.action_labels is not None else range(cmdp.actions), "actions")
    tables = [np.asarray(table).ravel().tolist() for table in (cmdp.objective, *(c.values for c in cmdp.constraints))]
    matrix = sp.csr_array(cmdp.transitions)
    indptr, indices, data = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    first, chosen = cmdp.pairs.first.tolist(), cmdp.pairs.action.tolist()
    nothing = ",".join("0" for _ in names)  # Storm rounds numbers that follow a space
    lines = [
        f"// written by cmdpkit; the discount factor {cmdp.gamma!r} and the limits are not part of the format",
        *(f"// {c.name} {c.symbol} {c.bound!r}{c.unit}" for c in cmdp.constraints),
        "@type: MDP",
        "@parameters",
        "",
        "@reward_models",
        " ".join(rewards),
        "@nr_states",
        str(cmdp.states),
        "@nr_choices",
        str(cmdp.pairs.count),
        "@model",
    ]
    for s in range(cmdp.states):
        lines.append(f"state {s} [{nothing}]{' init' if s == start[0] else ''}")
        if cmdp.state_labels is not None:
            lines.append("//" + repr(cmdp.state_labels[s]).replace("\n", " "))
        for pair in range(first[s], first[s + 1]):
            lines.append(f"\taction {actions[chosen[pair]]} [{','.join(repr(table[pair]) for table in tables)}]")
            lines += [f"\t\t{indices[k]} : {data[k]!r}" for k in range(indptr[pair], indptr[pair + 1])]
    write_whole(path, lambda file: file.write(("\n".join(lines) + "\n").encode()))


def _words(labels: Iterable[Hashable], kind: str) -> list[str]:
    """Labels as single words, which DRN files need: other characters become underscores."""
    words = [re.sub(r"[^\w.+-]", "_", str(label)) for label in labels]
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise ValueError(f"{kind} that differ only in punctuation cannot be told apart in a DRN file: {twice}")
    return words
