"""The ways into a model that are methods of `CMDP`: their arguments and documentation. Each is a file of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from cmdpkit.model.criterion import check_criterion

if TYPE_CHECKING:
    from cmdpkit.model.cmdp import CMDP
    from cmdpkit.model.labels import Label
    from cmdpkit.model.limits import Limit


class ModelOptions(TypedDict, total=False):
    """What all ways in take, and hand to `CMDP` as it is."""

    constraints: Iterable[Limit]
    gamma: float | None
    horizon: int | None
    average: bool
    objective_name: str | None
    objective_per_step: bool


class TableOptions(ModelOptions, total=False):
    """What `from_table` and `from_samples` take."""

    reward: str | None
    cost: str | None
    initial: Any
    state_labels: Iterable[Label] | None
    action_labels: Iterable[Label] | None
    absorbing: Any
    unreachable: str
    columns: Mapping[str, str] | None


TABLE_DEFAULTS: dict[str, Any] = {
    "reward": None,
    "cost": None,
    "initial": None,
    "state_labels": None,
    "action_labels": None,
    "absorbing": False,
    "unreachable": "warn",
    "columns": None,
}


def checked(way: str, options: Mapping[str, Any], more: Iterable[str] = ()) -> dict[str, Any]:
    """Options of a model; unknown ones and those that exclude each other are refused before anything is read.

    `more` are the names of further arguments, which have been taken out.
    """
    from cmdpkit.model.references import limit_list, suggestion

    known = list(ModelOptions.__annotations__)
    for name in options:
        if name not in known:
            raise TypeError(f"{way}() has no argument {name!r}; {suggestion(name, [*more, *known], 'arguments')}")
    check_criterion(options.get("gamma"), options.get("horizon"), options.get("average", False))
    return {**options, "constraints": limit_list(options.get("constraints", ()))}


def checked_table(way: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a model, and what `from_table` and `from_samples` take in addition."""
    own = {name: options.get(name, default) for name, default in TABLE_DEFAULTS.items()}
    return checked(way, {name: options[name] for name in options if name not in own}, own), own


def spell_out(model: type[WaysIn]) -> None:
    """Let `help` list the arguments that a way in takes as `**options`, with their defaults."""
    constructor = inspect.signature(model).parameters
    keyword = inspect.Parameter.KEYWORD_ONLY
    common = [constructor[name] for name in ModelOptions.__annotations__]
    tables = [
        inspect.Parameter(name, keyword, default=default, annotation=TableOptions.__annotations__[name].__forward_arg__)
        for name, default in TABLE_DEFAULTS.items()
    ]
    for way in vars(WaysIn).values():
        if isinstance(way, classmethod):
            own = inspect.signature(way.__func__)
            *named, options = own.parameters.values()
            more = tables if "TableOptions" in options.annotation else []
            way.__func__.__signature__ = own.replace(parameters=[*named, *more, *common])  # type: ignore[attr-defined]


class WaysIn:
    """Models from tables, logs, functions, matrices and other packages."""

    @classmethod
    def from_table(cls: Any, source: Any, **options: Unpack[TableOptions]) -> CMDP:
        """A model from a tidy table with one row per transition.

        The columns are state, action, next_state, probability, reward (or cost), and one per further cost. Pairs of
        state and action that have no row are not available. A reward may depend on the next state: its expected value
        is taken.

        Args:
            source: the path of a CSV file in UTF-8 with a header line, a pandas or polars frame, or a dict of columns.
                Large files need pandas to be read fast.
            reward, cost: the name of the column to maximise or to minimise; by default the column `reward` or `cost`.
            initial: a state, {state: probability}, or a distribution; uniform by default.
            state_labels, action_labels: all labels, in the order that the model is to have. By default whole numbers
                are sorted, and other labels come in the order in which they first appear (states before next states).
                The labels 0, 1, ... are the same as none. In a file, labels are text unless all are whole numbers.
            absorbing: True, or a list of states: where no row leads out of a state, the process stays there forever,
                at no reward or cost, by the first action. Otherwise such states are refused.
            unreachable: what to do about states that cannot be reached from the initial ones: "warn" and keep them,
                "keep", "drop" or "refuse".
            columns: the names of the columns where they differ, as in {"next_state": "to"}.
            constraints: limits whose values are names of columns, as in `AtMost("wear", 4.0)`, or arrays.
            gamma, horizon, average, objective_name, objective_per_step: as for `CMDP`. The objective is called by its
                column unless that is `reward` or `cost`.

        Example:
            >>> import cmdpkit as ck
            >>> table = {
            ...     "state": ["good", "good", "good", "bad"],
            ...     "action": ["run", "run", "rest", "repair"],
            ...     "next_state": ["good", "bad", "good", "good"],
            ...     "probability": [0.9, 0.1, 1.0, 1.0],
            ...     "reward": [1.0, 1.0, 0.0, -2.0],
            ...     "wear": [1.0, 1.0, 0.0, 0.0],
            ... }
            >>> cmdp = ck.CMDP.from_table(table, constraints=[ck.AtMost("wear", 4.0)], gamma=0.9, initial="good")
            >>> cmdp.state_labels, cmdp.action_labels
            (('good', 'bad'), ('run', 'rest', 'repair'))
            >>> round(ck.solve(cmdp).objective, 6)
            3.28
        """
        from cmdpkit.model.tables import from_table

        return from_table(cls, source, *checked_table("from_table", options))

    @classmethod
    def from_samples(cls: Any, source: Any, **options: Unpack[TableOptions]) -> CMDP:
        """A model estimated from logged transitions: frequencies as probabilities, means as rewards and costs.

        The log has one row per step with the columns state, action, next_state, reward (or cost), and one per further
        cost. Actions that were never tried in a state are not available there, and no prior is added; `counts`
        holds how often each pair was tried. States in which the log ends are never left: list them as `absorbing` if
        the process ends there. All arguments are those of `from_table`.

        Example:
            >>> import cmdpkit as ck
            >>> log = {
            ...     "state": ["good", "good", "good", "bad"],
            ...     "action": ["run", "run", "run", "repair"],
            ...     "next_state": ["good", "good", "bad", "good"],
            ...     "reward": [1.0, 1.0, 1.0, -2.0],
            ... }
            >>> cmdp = ck.CMDP.from_samples(log, gamma=0.9, initial="good")
            >>> cmdp.counts
            array([3, 1])
            >>> cmdp.to_table()["probability"].round(3)
            array([0.667, 0.333, 1.   ])
        """
        from cmdpkit.model.samples import from_samples

        return from_samples(cls, source, *checked_table("from_samples", options))

    @classmethod
    def from_function(
        cls: Any,
        function: Callable[..., Any],
        initial: Any,
        *,
        actions: Any,
        available: Callable[[Any], Any] | None = None,
        minimise: bool = False,
        absorbing: Any = False,
        max_states: int = 10_000_000,
        vectorised: bool = False,
        progress: bool | Callable[[int, int], None] = False,
        **options: Unpack[ModelOptions],
    ) -> CMDP:
        """A model from a function that returns the outcomes of an action in a state, explored from the initial states.

        Args:
            function: called with (state, action); returns a list of outcomes (probability, next state, reward, costs).
                States are anything hashable. Costs are a tuple in the order of the limits or a dict by name, and may be
                left out without limits. Outcomes with the same next state are added, those with probability zero are
                left out.
            initial: the initial state, or {state: probability}.
            actions: the list of all actions, or a function that returns those available in a state.
            available: for vectorised functions: called with an array of n states, returns (n, A) booleans.
            minimise: whether the third entry of an outcome is a cost to minimise in place of a reward.
            absorbing: as in `from_table`, for states in which no action is available.
            max_states: the exploration stops with an error when it finds more states.
            vectorised: whether `function` takes and returns arrays. It is called with an array of n states, of shape
                (n,) or (n, d) and type int64, and the array of the n numbers of the actions; it returns the tuple
                (row, probability, next states, reward, costs) with one entry per outcome, where row (0 to n − 1) is
                the number of the pair to which the outcome belongs. Costs are a list of arrays or a dict by name.
            progress: True to print how many states were explored and found, or a function called with both numbers.
            constraints: limits with the name of a cost, as in `AtMost("wear", 4.0)`.
            gamma, horizon, average, objective_name, objective_per_step: as for `CMDP`.

        States that are whole numbers are sorted; others are kept in the order in which they are found.

        Example:
            A machine wears out, and repairs cost money.

            >>> import cmdpkit as ck
            >>> def machine(age, action):
            ...     if action == "repair":
            ...         return [(1.0, 0, -2.0, (1.0,))]
            ...     return [(0.8, age, 3.0 - age, (0.0,)), (0.2, min(age + 1, 5), 3.0 - age, (0.0,))]
            >>> cmdp = ck.CMDP.from_function(
            ...     machine, 0, actions=["run", "repair"], constraints=[ck.AtMost("repairs", 0.5)], gamma=0.9
            ... )
            >>> cmdp
            CMDP(states=6, actions=2, constraints=['repairs'], gamma=0.9)
        """
        from cmdpkit.model.functions import from_function

        settings: dict[str, Any] = {"available": available, "minimise": minimise, "max_states": max_states}
        settings |= {"vectorised": vectorised, "absorbing": absorbing, "progress": progress}
        return from_function(cls, function, initial, checked("from_function", options), actions=actions, **settings)

    @classmethod
    def from_gymnasium(
        cls: Any,
        env: Any,
        *,
        cost: Any = None,
        initial: Any = None,
        **options: Unpack[ModelOptions],
    ) -> CMDP:
        """The exact model of a Gymnasium environment with a table `env.unwrapped.P` (FrozenLake, CliffWalking, Taxi).

        States and actions have the numbers of the environment. A state in which an episode ends keeps the process
        forever, at no reward or cost; if episodes end in a state that others pass through, they end in an additional
        state "end" instead. Time limits are not part of the model.

        Args:
            env: the environment, or its name, which `gymnasium.make` is called with.
            cost: a function of (state, action, next state, reward, terminated), or a dict of such functions by name.
            initial: as for `CMDP`; by default the environment's own distribution.
            constraints: limits with the name of a cost, as in `AtMost("falls", 0.1)`.
            gamma, horizon, average, objective_name, objective_per_step: as for `CMDP`.

        Example:
            >>> import gymnasium, cmdpkit as ck
            >>> env = gymnasium.make("CliffWalking-v1")
            >>> near = ck.AtMost("near the cliff", 2.0)  # the states 24 to 35 lie along the cliff
            >>> cmdp = ck.CMDP.from_gymnasium(
            ...     env, cost=lambda s, a, n, r, ended: float(24 <= s < 36), constraints=[near], gamma=0.95
            ... )
            >>> round(ck.solve(cmdp).objective, 3)
            -10.657
        """
        from cmdpkit.model.gymnasium import from_gymnasium

        return from_gymnasium(cls, env, checked("from_gymnasium", options), cost=cost, initial=initial)

    @classmethod
    def from_matrices(
        cls: Any,
        matrices: Any,
        *,
        reward: Any = None,
        cost: Any = None,
        initial: Any = None,
        available: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        **options: Unpack[ModelOptions],
    ) -> CMDP:
        """A model from one transition matrix per action, as in pymdptoolbox: actions come first.

        Args:
            matrices: an (A, S, S) array, or a list of A matrices (S, S), dense or scipy.sparse.
            reward, cost: (S,), (S, A) or (A, S, S), or a list with one (S,) or (S, S) array or matrix per action.
            initial, available, state_labels, action_labels: as for `CMDP`.
            constraints: limits with values of the same shapes.
            gamma, horizon, average, objective_name, objective_per_step: as for `CMDP`.

        Example:
            >>> import numpy as np, cmdpkit as ck
            >>> wait, cut = [[0.1, 0.9], [0.1, 0.9]], [[1.0, 0.0], [1.0, 0.0]]
            >>> cmdp = ck.CMDP.from_matrices([wait, cut], reward=[[0.0, 0.0], [4.0, 2.0]], gamma=0.9)
            >>> cmdp.transitions
            array([[0.1, 0.9], [1. , 0. ], [0.1, 0.9], [1. , 0. ]])
        """
        from cmdpkit.model.matrices import from_matrices

        settings = {"available": available, "state_labels": state_labels, "action_labels": action_labels}
        settings |= {"initial": initial, **checked("from_matrices", options)}
        return from_matrices(cls, matrices, reward=reward, cost=cost, **settings)

    @classmethod
    def from_quantecon(
        cls: Any,
        ddp: Any,
        *,
        initial: Any = None,
        state_labels: Iterable[Label] | None = None,
        action_labels: Iterable[Label] | None = None,
        **options: Unpack[ModelOptions],
    ) -> CMDP:
        """A model from a `DiscreteDP` of QuantEcon, in either of its forms.

        Actions with reward −inf are not available. The discount factor is `ddp.beta`, also over a horizon, unless
        `gamma` or `average` is given. Values of limits have the shapes of `CMDP`, or one entry per pair in the order of
        `ddp.s_indices`. All arguments are those of `CMDP`.

        Example:
            >>> import numpy as np, cmdpkit as ck
            >>> from quantecon.markov import DiscreteDP
            >>> rewards = [[5.0, 10.0], [-1.0, -np.inf]]
            >>> ddp = DiscreteDP(rewards, [[[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.5, 0.5]]], beta=0.95)
            >>> cmdp = ck.CMDP.from_quantecon(ddp, initial=0)
            >>> round(ck.solve(cmdp).objective, 4), ddp.solve().v.round(4).tolist()
            (-8.5714, [-8.5714, -20.0])
        """
        from cmdpkit.model.matrices import beta_of, from_quantecon

        settings: dict[str, Any] = {"state_labels": state_labels, "action_labels": action_labels, "initial": initial}
        if options.get("gamma") is None and not options.get("average"):
            options["gamma"] = beta_of(ddp)
        return from_quantecon(cls, ddp, **settings, **checked("from_quantecon", options))

    @classmethod
    def from_storm(
        cls: Any,
        source: Any,
        *,
        reward: str | None = None,
        cost: str | None = None,
        initial: Any = None,
        constants: Any = None,
        **options: Unpack[ModelOptions],
    ) -> CMDP:
        """A model from a PRISM, JANI, DRN or UMB file, or from a sparse MDP or DTMC of stormpy 2.

        States are called by the values of their variables, as in "x=1, y=2", where the model has them; actions by the
        labels of their choices, or "choice 0", "choice 1", ... where there are none. A label that a state has several
        times is numbered, as in "go (2)".

        Args:
            source: the path of a file, or a model.
            reward, cost: the name of the reward model to maximise or to minimise.
            initial: as for `CMDP`; by default the initial state of the model.
            constants: values of the undefined constants of a PRISM or JANI file, as in "N=3" or {"N": 3}.
            constraints: limits whose values are the name of a reward model, or of a label, which counts the steps in
                its states.
            gamma, horizon, average, objective_name, objective_per_step: as for `CMDP`. The objective is called by its
                reward model.

        Example:
            >>> import tempfile, pathlib, cmdpkit as ck
            >>> program = '''
            ... mdp
            ... module machine
            ...   worn : bool init false;
            ...   [run] !worn -> 0.9 : true + 0.1 : (worn'=true);
            ...   [repair] worn -> (worn'=false);
            ... endmodule
            ... rewards "output" [run] true : 1; endrewards
            ... label "down" = worn;
            ... '''
            >>> path = pathlib.Path(tempfile.mkdtemp(), "machine.prism")
            >>> _ = path.write_text(program)
            >>> cmdp = ck.CMDP.from_storm(path, reward="output", constraints=[ck.AtMost("down", 2.0)], gamma=0.9)
            >>> cmdp.state_labels, cmdp.action_labels
            (('worn=False', 'worn=True'), ('run', 'repair'))
        """
        from cmdpkit.model.storm import from_storm

        settings: dict[str, Any] = {"reward": reward, "cost": cost, "initial": initial, "constants": constants}
        return from_storm(cls, source, checked("from_storm", options), **settings)
