// The section that shows one sentence at a time. Choices, buttons and keys select the sentence, layer,
// stream and head.

const wordsOf = (sentence) => sentence.source ?? sentence.target_in;
const isOwn = ({ origin }) => origin?.startsWith("--sentence");

/** Return a text for each sentence of a run: its words, and its number among those with the same words. */
const textsOf = (run) => {
  const texts = run.sentences.map((sentence) => wordsOf(sentence).join(" "));
  return texts.map((text, i) => `${texts.slice(0, i).filter((one) => one === text).length} ${text}`);
};

/**
 * Return all sentences of all runs, each once. Sentences of --sentence come first.
 * at: the index of the sentence in each run, or -1; label: its number and words; origin: where it is from.
 */
const SENTENCES = (() => {
  const known = RUNS.map(textsOf);
  const all = RUNS.flatMap((run, i) => run.sentences.map((sentence, j) => [sentence, known[i][j]]));
  const inOrder = [...all.filter(([one]) => isOwn(one)), ...all.filter(([one]) => !isOwn(one))];
  return unique(inOrder.map(([, text]) => text)).map((text, i) => {
    const at = known.map((texts) => texts.indexOf(text));
    const first = RUNS[at.findIndex((index) => index >= 0)].sentences[at.find((index) => index >= 0)];
    const words = wordsOf(first)
      .filter((token) => token !== "</s>")
      .join(" ");
    return {
      at,
      label: `${i + 1}. ${words.length > 60 ? `${words.slice(0, 60)}…` : words}`,
      origin: first.origin,
    };
  });
})();

const SHOWN = { attention: "attention weights", mask: "semantic mask" };
const modulesOf = (kind) => RUNS.flatMap((run) => run.modules).filter((module) => module.kind === kind);
const layersOf = (kind) => unique(modulesOf(kind).map((module) => module.layer)).toSorted((a, b) => a - b);
const streamsOf = (kind, layer) =>
  unique(
    modulesOf(kind)
      .filter((module) => module.layer === Number(layer) && module.stream)
      .map((module) => module.stream),
  ).toSorted((a, b) => a - b);
const headsOf = (kind) => Math.max(...modulesOf(kind).map((module) => module.heads));

/** For each key of the state a function that returns the choices [value, text] in the current state. */
const OPTIONS = {
  sentence: () => SENTENCES.map((sentence, i) => [String(i), `${sentence.label} (${sentence.origin})`]),
  show: () =>
    Object.entries(SHOWN).filter(([what]) =>
      RUNS.some((run) =>
        run.shapes.some((shapes) => Object.keys(shapes).some((name) => name.startsWith(`${what}/`))),
      ),
    ),
  kind: () => KINDS.filter((kind) => modulesOf(kind).length).map((kind) => [kind, kind]),
  layer: () => layersOf(STATE.kind).map((layer) => [String(layer), `layer ${layer}`]),
  stream: () => streamsOf(STATE.kind, STATE.layer).map((stream) => [String(stream), `stream ${stream}`]),
  head: () => [
    ...Array.from({ length: headsOf(STATE.kind) }, (_, i) => [String(i + 1), `head ${i + 1}`]),
    ["mean", "mean of heads"],
  ],
  thumbs: () => [
    ["layer", "of this layer"],
    ["all", "of all layers"],
  ],
};

/** Change the view. Parts of the state that the new view does not have get their first choice. */
function show(changes) {
  const before = { ...STATE };
  Object.assign(STATE, changes);
  for (const key of ["sentence", "show", "kind", "layer", "stream", "head", "thumbs"]) {
    const values = OPTIONS[key]().map(([value]) => value);
    if (values.length && !values.includes(STATE[key])) STATE[key] = values[0];
  }
  const after = { ...STATE };
  Object.assign(STATE, before);
  setState(after);
}

/** Change the view to the choice that is `by` places after the current one, if there is one. */
function step(key, by) {
  const values = OPTIONS[key]().map(([value]) => value);
  const next = values.indexOf(STATE[key]) + by;
  if (next >= 0 && next < values.length) show({ [key]: values[next] });
}

/**
 * Make a labelled <select> among OPTIONS, which is hidden while there is only one.
 * watch: other keys of the state on which the options depend.
 * The last argument has the buttons that step to the choices before and after.
 */
function chooser(label, key, watch = [], [before, after] = []) {
  const id = `choose-${key}`;
  const select = el("select", { id, onchange: () => show({ [key]: select.value }) });
  const control = el(
    "div",
    { class: "control" },
    el("label", { for: id }, label),
    el("div", { class: "stepper" }, before, select, after),
  );
  const draw = () => {
    const options = OPTIONS[key]();
    select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    select.value = STATE[key];
    if (before) {
      before.disabled = options[0]?.[0] === STATE[key];
      after.disabled = options[options.length - 1]?.[0] === STATE[key];
    }
    control.hidden = options.length < 2;
  };
  WATCHERS.push({ keys: [key, ...watch], draw });
  draw();
  return control;
}

/** Make a chooser with buttons that step to the choices before and after. */
function stepper(label, key, watch = []) {
  const button = (text, title, by) =>
    el("button", { type: "button", "aria-label": title, title, onclick: () => step(key, by) }, text);
  const name = label.toLowerCase();
  const buttons = [button("‹", `previous ${name}`, -1), button("›", `next ${name}`, 1)];
  return chooser(label, key, watch, buttons);
}

function sentences() {
  if (!SENTENCES.length || !OPTIONS.kind().length) return null;
  show({});
  const stage = el("div", { class: "stage" });
  let latest = 0;
  const draw = async () => {
    const mine = ++latest; // a later call of draw() makes this one obsolete
    const arrays = await Promise.all(
      SENTENCES[STATE.sentence].at.map((index, run) => (index < 0 ? null : unpack(run, index))),
    );
    if (mine !== latest) return;
    const focused = ["cells", "thumb"].find(
      (name) => document.activeElement?.classList.contains(name) && stage.contains(document.activeElement),
    );
    stage.replaceChildren(
      sideBySide(
        RUNS.filter((run) => run.sentences.length),
        (run) => {
          const index = SENTENCES[STATE.sentence].at[run.index];
          return index < 0
            ? el("p", { class: "note" }, "The analysis of this checkpoint does not have this sentence.")
            : sentenceOf(run, run.sentences[index], arrays[run.index]);
        },
      ),
    );
    document.dispatchEvent(new Event("drawn"));
    if (focused)
      stage
        .querySelector(focused === "cells" ? ".chosen .cells" : ".thumb[aria-pressed=true]")
        ?.focus({ preventScroll: true });
  };
  WATCHERS.push({ keys: ["sentence", "show", "kind", "layer", "stream", "head", "thumbs"], draw });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw);
  else draw();
  const shapes = RUNS.flatMap((run) => run.shapes.flatMap(Object.entries));
  const drawn = (what) =>
    shapes.some(([name, shape]) => name.startsWith(`${what}/`) && (what !== "gates" || shape[0] > 1));
  const linear = ["gates", "clusters", "competition"].filter(drawn);
  const keys = (text, ...names) => [names.map((name) => [el("kbd", {}, name), " "]), text].flat(2);
  return [
    el(
      "div",
      { class: "controls" },
      stepper("Sentence", "sentence"),
      chooser("Show", "show"),
      chooser("Attention", "kind"),
      stepper("Layer", "layer", ["kind"]),
      stepper("Stream", "stream", ["kind", "layer"]),
      stepper("Head", "head", ["kind"]),
      chooser("Small maps", "thumbs"),
    ),
    el(
      "p",
      { class: "note help" },
      "Keys that work while the focus is in this section: ",
      ...keys("layer · ", "↑", "↓"),
      ...keys("head · ", "←", "→"),
      ...keys("sentence · ", "[", "]"),
      ...keys("kind of attention · ", "k"),
      ...keys("cell of a map that has the focus", "Shift", "← ↑ ↓ →"),
    ),
    el(
      "div",
      { class: "ramps" },
      rampLegend(`weight (exact to ± ${Number(DATA.error.toFixed(3))})`, true),
      linear.length ? rampLegend(linear.join(", ")) : null,
    ),
    stage,
  ];
}

const STEPS = {
  "[": ["sentence", -1],
  "]": ["sentence", 1],
  ArrowUp: ["layer", -1],
  ArrowDown: ["layer", 1],
  ArrowLeft: ["head", -1],
  ArrowRight: ["head", 1],
};

/** Handle a key if the focus is in this section, and not in a <select>, which has its own keys. */
function stepByKey(event) {
  if (
    event.altKey ||
    event.ctrlKey ||
    event.metaKey ||
    /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)
  )
    return;
  if (!event.target.closest("#sentences")) return;
  if (event.key === "k") {
    const kinds = OPTIONS.kind().map(([kind]) => kind);
    show({ kind: kinds[(kinds.indexOf(STATE.kind) + 1) % kinds.length] });
  } else if (STEPS[event.key] && !(event.shiftKey && event.key.startsWith("Arrow"))) {
    event.preventDefault();
    step(...STEPS[event.key]);
  }
}
