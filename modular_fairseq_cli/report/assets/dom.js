"use strict";
// What the other scripts stand on: the numbers, elements, number formats, names of modules.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.checkpoints;
RUNS.forEach((run, index) => {
  run.index = index;
});

/** The runs with an analysis. */
const having = (name) => RUNS.filter((run) => run.analyses[name]);

/** Of each curve of a log its title, unit and group, by its key. */
const CURVES = new Map(DATA.curves.map(([key, title, unit, group]) => [key, { title, unit, group }]));
const runColour = (index) => `var(--run-${index})`;
const KINDS = ["encoder self-attention", "decoder self-attention", "cross-attention"];

/** An element. Attributes: on... are listeners, --... CSS variables, true and false switches; children: elements or text, null is none. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table; a row is a list of cells, the first of them its heading, or a text: the heading of a group of rows. */
function table(head, rows, attributes = {}) {
  const cell = (content, tag, more = {}) =>
    content instanceof Node && /^T[DH]$/.test(content.tagName) ? content : el(tag, more, content ?? "");
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      attributes,
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((content, i) => cell(content, "th", { scope: "col", class: i ? null : "text" })),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          typeof row === "string"
            ? el("tr", {}, el("th", { colspan: head.length, scope: "colgroup" }, row))
            : el(
                "tr",
                {},
                row.map((content, i) => (i ? cell(content, "td") : cell(content, "th", { scope: "row" }))),
              ),
        ),
      ),
    ),
  );
}

/** A cell of a heat table: coloured by value / most. */
function heat(value, most, text) {
  return el("td", { class: "heat", "--v": most > 0 ? Math.max(0, value / most) : 0 }, text);
}

/** A cell of a heat table: one colour towards 1, another towards -1. */
function signedHeat(value, text) {
  return el(
    "td",
    { class: value < 0 ? "heat negative" : "heat positive", "--v": Math.abs(value ?? 0) },
    text,
  );
}

/** A cell with a bar from 0 to value / most, in the colour of the run. */
function track(value, most, run) {
  return el(
    "td",
    { class: "bar" },
    el("span", { class: "track" }, el("i", { "--to": value / most, "--run": runColour(run.index) })),
  );
}

const bdi = (token) => el("bdi", {}, token);

function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return Number(value).toFixed(digits);
}

/** As short as it can be: 0.00042, 1.38, 890. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6))
    return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(value >= 1000 ? 6 : 4)));
}

const percent = (share, digits = 1) => `${number(100 * share, digits)} %`;
const grouped = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const unique = (list) => [...new Set(list)];
const sum = (list) => list.reduce((total, value) => total + value, 0);

/** "layer 2, stream 1": where {module, layer, stream} is; its name where no layer is given. */
function place({ module, layer, stream }) {
  return layer ? `layer ${layer}${stream ? `, stream ${stream}` : ""}` : module;
}

/** "L2S1": the same for the head of a column. */
const shortPlace = (module) => place(module).replace("layer ", "L").replace(", stream ", "S");

/** "encoder, layer 2": a place with its side of the model. */
function fullPlace(module) {
  const side = /encoder_attn/.test(module.module) ? "cross-attention" : module.module.split(".")[0];
  return `${side}, ${place(module)}`;
}

/** {module, layer, stream} of a layer with a competition, which a run may name only. */
function competitionLayer(run, name) {
  const parts = run.modules.filter(({ module }) => module.startsWith(`${name}.`));
  const { layer, stream } =
    [...(run.analyses.competition?.layers ?? []).filter(({ module }) => module === name), ...parts][0] ?? {};
  return { module: name, layer, stream };
}

/** Rows under a heading for each kind. */
function byKind(modules, row) {
  return unique(modules.map((module) => module.kind)).flatMap((kind) => [
    kind,
    ...modules.filter((module) => module.kind === kind).map(row),
  ]);
}

function runHeading(run) {
  return el("h4", { class: "run", "--run": runColour(run.index) }, run.label);
}

/** A column for each run that `draw` has something for. */
function sideBySide(runs, draw) {
  return el(
    "div",
    { class: "side" },
    runs.map((run) => {
      const content = draw(run);
      return content === null
        ? null
        : el("div", {}, RUNS.length > 1 ? runHeading(run) : null, el("div", {}, ...[content].flat()));
    }),
  );
}
