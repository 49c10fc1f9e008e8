"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("data"), figures = read("figures");
  const $ = (id) => document.getElementById(id);
  const make = (tag, kind, text) => {
    const node = document.createElement(tag);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  let stage = 0, drawn = false;

  // -- the table of the policy: rows are kept as short lists, and only one page of them is in the document

  function policyTable(policy) {
    const ROWS = 25, body = $("policy-rows"), tools = { find: $("find"), mixed: $("mixed"), action: $("action") };
    const name = (labels, k) => (labels ? labels[k] : String(k));
    const plays = (row) => (typeof policy.plays[row] === "number" ? [policy.plays[row], 1] : policy.plays[row]);
    const isMixed = (row) => typeof policy.plays[row] !== "number";
    const state = (row) => name(policy.stateNames, policy.stateNames ? row : policy.states[row]);
    const text = policy.states.map((_, row) => {
      const p = plays(row), names = [state(row)];
      for (let k = 0; k < p.length; k += 2) names.push(name(policy.actionNames, p[k]));
      return names.join("\n").toLowerCase();
    });
    let found = [], page = 0;

    function cell(row) {
      const td = make("td"), p = plays(row);
      for (let k = 0; k < p.length; k += 2) {
        const line = make("div", "play"), bar = make("span", "bar"), fill = make("i");
        fill.style.width = `${100 * p[k + 1]}%`;
        bar.append(fill);
        line.append(bar, make("span", "", name(policy.actionNames, p[k])));
        if (p.length > 2) line.append(make("span", "note", `${(100 * p[k + 1]).toPrecision(4)} %`));
        td.append(line);
      }
      return td;
    }

    function show() {
      const pages = Math.max(1, Math.ceil(found.length / ROWS));
      page = Math.min(Math.max(page, 0), pages - 1);
      body.replaceChildren(...found.slice(page * ROWS, (page + 1) * ROWS).map((row) => {
        const tr = make("tr");
        if (policy.stages) tr.append(make("td", "", String(policy.stages[row])));
        const where = make("td", "", state(row));
        if (isMixed(row)) where.append(" ", make("span", "mixed", "randomised"));
        tr.append(where, cell(row));
        if (policy.visits) tr.append(make("td", "right", policy.visits[row] === 0 ? "0" : policy.visits[row].toPrecision(3)));
        return tr;
      }));
      const last = Math.min((page + 1) * ROWS, found.length);
      $("count").textContent = found.length
        ? `${(page * ROWS + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${found.length.toLocaleString("en")} rows`
        : "no row matches";
      $("before").disabled = page === 0;
      $("after").disabled = page >= pages - 1;
    }

    function filter() {
      const wanted = tools.find.value.trim().toLowerCase(), action = tools.action.value;
      const only = policy.stages && !$("all-stages").checked;
      found = [];
      for (let row = 0; row < policy.states.length; row++) {
        if (only && policy.stages[row] !== stage) continue;
        if (tools.mixed.checked && !isMixed(row)) continue;
        if (action !== "" && !plays(row).some((a, k) => k % 2 === 0 && a === Number(action))) continue;
        if (wanted && !text[row].includes(wanted)) continue;
        found.push(row);
      }
      page = 0;
      show();
    }

    for (const a of policy.played) {
      const option = make("option", "", name(policy.actionNames, a));
      option.value = String(a);
      tools.action.append(option);
    }
    for (const node of [tools.find, tools.mixed, tools.action]) node.addEventListener("input", filter);
    if (policy.stages) $("all-stages").addEventListener("input", filter);
    $("before").addEventListener("click", () => { page--; show(); });
    $("after").addEventListener("click", () => { page++; show(); });
    filter();
    return filter;
  }

  const filter = data.policy ? policyTable(data.policy) : () => {};
  const slider = $("stage");
  if (slider) {
    slider.addEventListener("input", () => {
      stage = Number(slider.value);
      $("stage-number").textContent = slider.value;
      filter();
      for (const { id, stages } of figures) if (drawn && stages.length) window.Plotly.react(id, stages[stage].data, fitted(stages[stage].layout), config);
    });
  }

  // -- figures: the library is inflated once the text is on screen

  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" } };

  const narrow = () => window.innerWidth < 640;

  function fitted(layout) {
    if (!narrow()) return layout;
    const { scaleanchor, ...yaxis } = layout.yaxis ?? {};
    return { ...layout, yaxis, font: { ...layout.font, size: 11 }, margin: { ...layout.margin, l: 48, r: 8 } };
  }

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  async function draw() {
    const source = $("plotly");
    if (!source) return;
    const script = document.createElement("script");
    script.textContent = await inflate(source.textContent);
    source.remove();
    document.head.append(script);
    for (const { id, figure } of figures) {
      await window.Plotly.newPlot(id, figure.data, fitted(figure.layout), config);
      await new Promise((next) => setTimeout(next));
    }
    drawn = true;
    document.documentElement.dataset.drawn = "yes";
  }

  function failed(error) {
    for (const { id } of figures) $(id).replaceChildren(make("p", "note", `This figure could not be drawn: ${error.message}`));
    document.documentElement.dataset.drawn = "no";
  }

  const start = () => requestAnimationFrame(() => setTimeout(() => draw().catch(failed)));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();

  // A figure keeps its width in print; paper is narrower than most screens.
  const resize = (width) => {
    if (!drawn) return;
    for (const { id } of figures) window.Plotly.relayout(id, width ? { width, autosize: false } : { width: null, autosize: true });
  };
  window.addEventListener("beforeprint", () => resize(680));
  window.addEventListener("afterprint", () => resize(0));
})();
