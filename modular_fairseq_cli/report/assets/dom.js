"use strict";
// What all other scripts use: the data, elements, formats of numbers, and names of modules.
// The page joins all scripts into one (page.py has their order), so they share their names.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.checkpoints;
RUNS.forEach((run, index) => {
  run.index = index;
});

/** Return the runs that have this analysis. */
const having = (name) => RUNS.filter((run) => run.analyses[name]);

/** {title, unit, group} of each curve of a training log, by its key in the log. */
const CURVES = new Map(DATA.curves.map(([key, title, unit, group]) => [key, { title, unit, group }]));
const runColour = (index) => `var(--run-${index})`;
const KINDS = ["encoder self-attention", "decoder self-attention", "cross-attention"];

/**
 * Make an HTML element.
 * attributes: see `fill`.
 * children: elements, texts, and lists of these; null and undefined are left out.
 */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an SVG element; the arguments are those of `el`. */
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/**
 * Give an element attributes and children, and return it.
 * An attribute "on..." is an event listener, and "--..." a CSS variable. true sets an attribute without a
 * value, false removes it, and null and undefined leave it as it is.
 */
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

/**
 * Make a table.
 * head: the cells of the first row.
 * rows: each a list of cells, of which the first is the heading of the row; or a text, which is the heading
 *   of the rows below it. A cell is a <td>, a <th>, or the content of one.
 */
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

/** Make a cell with the colour of value / most. */
function heat(value, most, text) {
  return el("td", { class: "heat", "--v": most > 0 ? Math.max(0, value / most) : 0 }, text);
}

/** Make a cell with the colour of a value in [-1, 1]: negative and positive values have different colours. */
function signedHeat(value, text) {
  return el(
    "td",
    { class: value < 0 ? "heat negative" : "heat positive", "--v": Math.abs(value ?? 0) },
    text,
  );
}

/** Make a cell with a bar of length value / most in the colour of a run. */
function track(value, most, run) {
  return el(
    "td",
    { class: "bar" },
    el("span", { class: "track" }, el("i", { "--to": value / most, "--run": runColour(run.index) })),
  );
}

/** Make an element for a token whose direction of writing does not affect the text around it. */
const bdi = (token) => el("bdi", {}, token);

/** Return a number with a fixed number of decimals, or a dash if there is none. */
function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return Number(value).toFixed(digits);
}

/** Return a number with at most four significant digits, or six from 1000 on: 0.00042, 1.38, 890. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6))
    return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(value >= 1000 ? 6 : 4)));
}

/** Return a share of 1 in percent. */
const percent = (share, digits = 1) => `${number(100 * share, digits)} %`;
/** Return a number with commas between its thousands. */
const grouped = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const unique = (list) => [...new Set(list)];
const sum = (list) => list.reduce((total, value) => total + value, 0);

/** Return where a module stands, such as "layer 2, stream 1", or its dotted name if it has no layer. */
function place({ module, layer, stream }) {
  return layer ? `layer ${layer}${stream ? `, stream ${stream}` : ""}` : module;
}

/** Return the same in short, such as "L2S1", for headings of columns. */
const shortPlace = (module) => place(module).replace("layer ", "L").replace(", stream ", "S");

/** Return where a module stands with its side of the model, such as "encoder, layer 2". */
function fullPlace(module) {
  const side = /encoder_attn/.test(module.module) ? "cross-attention" : module.module.split(".")[0];
  return `${side}, ${place(module)}`;
}

/**
 * Return {module, layer, stream} of a layer with a competition, given by its dotted name.
 * If the analysis of the competition lacks it, an attention module in the layer gives its number.
 */
function competitionLayer(run, name) {
  const parts = run.modules.filter(({ module }) => module.startsWith(`${name}.`));
  const { layer, stream } =
    [...(run.analyses.competition?.layers ?? []).filter(({ module }) => module === name), ...parts][0] ?? {};
  return { module: name, layer, stream };
}

/** Return row(module) for every module, after a heading for each kind of attention; see `table`. */
function byKind(modules, row) {
  return unique(modules.map((module) => module.kind)).flatMap((kind) => [
    kind,
    ...modules.filter((module) => module.kind === kind).map(row),
  ]);
}

function runHeading(run) {
  return el("h4", { class: "run", "--run": runColour(run.index) }, run.label);
}

/** Make a box with a column for each run that contains draw(run). If that is null, the run has no column. */
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
