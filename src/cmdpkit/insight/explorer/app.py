"""The page of the explorer (Dash) and its callbacks."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from cmdpkit.insight.explorer import view
from cmdpkit.insight.explorer.answers import Answers, Superseded
from cmdpkit.insight.explorer.dials import Desk, Dial, Setting
from cmdpkit.insight.explorer.guard import guard
from cmdpkit.insight.figures import frontier_figure
from cmdpkit.insight.report.solved import frontier_words
from cmdpkit.insight.report.write import write_report
from cmdpkit.insight.words import is_proved, problem_words
from cmdpkit.run.result import Result

LIVE = 400
"""Up to so many states the page answers while a slider is dragged, else when it is let go."""

GRAPH: Any = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}
PINS = ("A", "B")
FILES = {"model": "model.npz", "policy": "policy.npz", "report": "report.html"}


class Explorer:
    """The page of one model: its desk of dials, its answers, and the settings that are pinned."""

    def __init__(self, desk: Desk, title: str, subtitle: str, source: Sequence[str], seconds: float, port: int) -> None:
        self.desk, self.answers = desk, Answers(desk, seconds)
        self.title, self.subtitle, self.source = title, subtitle, source
        self.pins: dict[str, tuple[Setting, Result]] = {}
        assets = Path(__file__).parent / "assets"
        self.app = Dash(
            "cmdpkit", assets_folder=str(assets), title=f"{title} · cmdpkit", update_title=None,
            serve_locally=True, compress=False,
        )  # fmt: skip
        self.app.layout = self.page()
        self._connect()
        guard(self.app.server, port, self.app.csp_hashes())

    # -- the page ---------------------------------------------------------------------------------------------------

    def page(self) -> Any:
        names = self.desk.base.one_sided.names
        exports = [html.Button(f"Save {name}", id=f"save-{name}", n_clicks=0) for name in FILES]
        pins = [html.Button(f"Pin as {name}", id=f"pin-{name}", n_clicks=0) for name in PINS]
        curve = [
            html.H2("What a limit costs"),
            dcc.RadioItems(
                id="axis", options=[{"label": n, "value": i} for i, n in enumerate(names)], value=0, inline=True
            ),
            dcc.Graph(id="frontier", config=GRAPH, figure={"data": [], "layout": {"height": 420}}),
            html.P(id="frontier-words", className="note"),
        ]
        answer = [
            html.Section(
                [
                    html.Div(id="headline", className="verdict", role="status"),
                    html.Div(id="cards", className="cards"),
                    html.Div(id="limits", className="scroll"),
                    html.Div(id="proof"),
                ],
                id="answer",
            ),
            html.Section(curve if names else [html.Div(id="frontier"), html.P(id="frontier-words")], id="curve"),
            html.Section(
                [
                    html.H2("The policy"),
                    dcc.Graph(id="policy", config=GRAPH, figure={"data": [], "layout": {"height": 300}}),
                    html.Details([html.Summary("The most visited states"), html.Div(id="visited", className="scroll")]),
                ]
            ),
            html.Section([html.H2("Side by side"), html.Div(id="pins", className="scroll")]),
        ]
        told = html.Details(
            [html.Summary("The problem"), html.Dl(_terms(problem_words(self.desk.base)))], className="about"
        )
        return html.Div(
            [
                html.Header(
                    [html.P("cmdpkit explorer", className="brand"), html.H1(self.title), html.P(self.subtitle)]
                ),
                html.Main(
                    [
                        html.Aside([*self._panel(), html.Div([*pins, *exports], className="buttons"), told]),
                        html.Div([html.P(id="trouble", role="alert"), *answer], className="answers"),
                    ]
                ),
                dcc.Store(id="solved"),
                dcc.Download(id="download"),
            ]
        )

    def _panel(self) -> list[Any]:
        parts: list[Any] = []
        for group in ("limits", "parameters"):
            own = [(i, dial) for i, dial in enumerate(self.desk.dials) if dial.group == group]
            if own:
                parts.append(html.H2(group.capitalize()))
                parts += [self._dial(i, dial) for i, dial in own]
        return [*parts, html.Div(html.Button("Reset", id="reset", n_clicks=0), className="buttons")]

    def _dial(self, i: int, dial: Dial) -> Any:
        live = "drag" if self.desk.base.states <= LIVE else "mouseup"
        field = dcc.Input(
            id={"type": "dial", "index": i}, type="number", value=dial.value, min=dial.low, max=dial.high,
            step=1 if dial.whole else "any", debounce=True, className="number-field",
        )  # fmt: skip
        slider = dcc.Slider(
            id={"type": "slider", "index": i}, min=dial.low, max=dial.high, step=dial.step, value=dial.value,
            marks={dial.low: f"{dial.low:g}", dial.high: f"{dial.high:g}"}, included=False, updatemode=live,
            allow_direct_input=False, tooltip=None,
        )  # fmt: skip
        return html.Div([html.Label([html.Span(dial.name), field]), slider], className="dial")

    # -- callbacks --------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        app, dials = self.app, Input({"type": "dial", "index": ALL}, "value")
        as_set = State({"type": "dial", "index": ALL}, "value")
        # The slider and the number field show the same number; the field is what counts.
        app.clientside_callback(
            "(x, y) => x === y ? window.dash_clientside.no_update : x",
            Output({"type": "dial", "index": MATCH}, "value", allow_duplicate=True),
            Input({"type": "slider", "index": MATCH}, "value"),
            State({"type": "dial", "index": MATCH}, "value"),
            prevent_initial_call=True,
        )
        app.clientside_callback(
            "(x, y) => x === y || x === undefined || x === null ? window.dash_clientside.no_update : x",
            Output({"type": "slider", "index": MATCH}, "value", allow_duplicate=True),
            Input({"type": "dial", "index": MATCH}, "value"),
            State({"type": "slider", "index": MATCH}, "value"),
            prevent_initial_call=True,
        )
        app.callback(
            Output({"type": "dial", "index": ALL}, "value"), Input("reset", "n_clicks"), prevent_initial_call=True
        )(self.reset)
        app.callback(
            Output("headline", "children"), Output("cards", "children"), Output("limits", "children"),
            Output("proof", "children"), Output("policy", "figure"), Output("visited", "children"),
            Output("trouble", "children"), Output("solved", "data"),
            dials,
        )(self.answer)  # fmt: skip
        if self.desk.base.num_constraints:
            app.callback(
                Output("frontier", "figure"), Output("frontier-words", "children"),
                Input("solved", "data"), Input("axis", "value"), as_set, prevent_initial_call=True,
            )(self.curve)  # fmt: skip
        app.callback(
            Output("pins", "children"), Input("solved", "data"), *(Input(f"pin-{name}", "n_clicks") for name in PINS),
            as_set, prevent_initial_call=True,
        )(self.compare)  # fmt: skip
        app.callback(
            Output("download", "data"), *(Input(f"save-{name}", "n_clicks") for name in FILES), as_set,
            prevent_initial_call=True,
        )(self.save)  # fmt: skip

    def reset(self, _: Any) -> list[float]:
        return list(self.desk.start)

    def answer(self, values: Any) -> tuple[Any, ...]:
        """Solve what is set. A field that is empty or outside its range keeps the last answer, with a message."""
        same = (no_update,) * 6
        empty = [dial for dial, value in zip(self.desk.dials, values, strict=False) if value is None]
        if empty:
            dial = empty[0]
            return *same, f"{dial.name} must be a number between {dial.low:g} and {dial.high:g}", no_update
        setting = self.checked(values)
        try:
            result = self.answers.solve(setting)
        except Superseded:
            raise PreventUpdate from None
        except (ValueError, ArithmeticError) as error:
            return *same, str(error), no_update
        figure, visited = view.policy(result, self.desk.axes(setting))
        shown = view.headline(result), view.cards(result), view.limits(result), view.proof(result), figure, visited
        return *shown, "", list(setting)

    def checked(self, values: Any) -> Setting:
        """The setting; whatever is not a number in its range did not come from the page (400)."""
        from flask import abort

        try:
            return self.desk.check(values)
        except ValueError as error:
            abort(400, str(error))

    def curve(self, _: Any, axis: Any, values: Any) -> tuple[Any, ...]:
        from flask import abort

        setting = self.checked(values)
        try:
            cmdp = self.desk.model(setting).one_sided
            if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < cmdp.num_constraints:
                abort(400, "there is no such limit")
            found = self.answers.frontier(setting, cmdp.names[axis])
            result = self.answers.solve(setting)
        except Superseded:
            raise PreventUpdate from None
        except (ValueError, ArithmeticError) as error:
            return no_update, str(error)
        if not found.feasible.any():
            told = (
                "No value can be met, because the other limits cannot."
                if found.complete
                else "No curve in the time allowed."
            )
            return view.empty_figure(told), ""
        objective = result.objective if is_proved(result) else float("nan")
        figure = frontier_figure(found, (float(cmdp.limits[axis]), objective))
        return figure, frontier_words(found)

    def compare(self, _: Any, *clicks: Any) -> Any:
        *_, values = clicks
        setting = self.checked(values)
        try:
            result = self.answers.solve(setting)
        except (Superseded, ValueError):
            raise PreventUpdate from None
        wanted = str(ctx.triggered_id or "").removeprefix("pin-")
        if wanted in PINS:
            self.pins[wanted] = (setting, result)
        columns = [("on screen", setting, result), *((name, *self.pins[name]) for name in PINS if name in self.pins)]
        return view.comparison(self.desk.dials, columns if self.pins else [])

    def save(self, *clicks: Any) -> Any:
        *_, values = clicks
        setting = self.checked(values)
        wanted = str(ctx.triggered_id or "").removeprefix("save-")
        if wanted not in FILES:
            raise PreventUpdate
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / FILES[wanted]
            try:
                self._write(wanted, setting, path)
            except Superseded:
                raise PreventUpdate from None
            return dcc.send_bytes(path.read_bytes(), f"{self.title}-{FILES[wanted]}")

    def _write(self, wanted: str, setting: Setting, path: Path) -> None:
        if wanted == "model":
            self.desk.model(setting).save(path)
            return
        result = self.answers.solve(setting)
        if wanted == "policy":
            result.policy.save(path)
            return
        write_report(
            result, path, title=self.title, subtitle=self.subtitle, axes=self.desk.axes(setting),
            time_limit=self.answers.seconds, command=shlex.join(self.desk.command(setting, self.source)),
        )  # fmt: skip


def _terms(pairs: list[tuple[str, str]]) -> list[Any]:
    return [part for term, text in pairs for part in (html.Dt(term), html.Dd(text))]
