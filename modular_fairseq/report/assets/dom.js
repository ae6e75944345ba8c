"use strict";
// What the other scripts stand on: the numbers, elements, number formats, names of modules.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.checkpoints;
RUNS.forEach((run, index) => {
  run.index = index;
});

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

const bdi = (token) => el("bdi", {}, token);

function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return Number(value).toFixed(digits);
}

/** As short as it can be: 0.00042, 1.38, 890. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(value >= 1000 ? 6 : 4)));
}

const percent = (share, digits = 1) => `${number(100 * share, digits)} %`;
const grouped = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const unique = (list) => [...new Set(list)];
const sum = (list) => list.reduce((total, value) => total + value, 0);

/** "layer 2, stream 1" of a module or layer by name; the name itself where that does not say. */
function place(name) {
  for (const run of RUNS) {
    const known = [...run.modules, ...(run.analyses.patterns?.modules ?? [])].find((module) => `${module.module}.`.startsWith(`${name}.`));
    if (known) return `layer ${known.layer}${known.stream ? `, stream ${known.stream}` : ""}`;
  }
  const found = /layers\.(\d+)/.exec(name);
  return found && !/stream/.test(name) ? `layer ${Number(found[1]) + 1}` : name;
}

/** "L2S1": the same for the head of a column. */
const shortPlace = (name) => place(name).replace("layer ", "L").replace(", stream ", "S");

/** "encoder, layer 2": a place with its side of the model. */
function fullPlace(name) {
  const side = /encoder_attn/.test(name) ? "cross-attention" : name.split(".")[0];
  return `${side}, ${place(name)}`;
}

/** Rows under a heading for each kind. */
function byKind(modules, row) {
  return unique(modules.map((module) => module.kind)).flatMap((kind) => [
    kind,
    ...modules.filter((module) => module.kind === kind).map(row),
  ]);
}

function runHeading(run) {
  return el("h4", { class: "run", "--run": `var(--run-${run.index % 4})` }, run.label);
}

/** A column for each run that `draw` has something for. */
function sideBySide(runs, draw) {
  return el(
    "div",
    { class: "side" },
    runs.map((run) => {
      const content = draw(run);
      return content === null ? null : el("div", {}, RUNS.length > 1 ? runHeading(run) : null, el("div", {}, ...[content].flat()));
    }),
  );
}
