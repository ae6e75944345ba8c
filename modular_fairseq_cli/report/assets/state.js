// What is shown, kept in the address so that a view can be linked: #section=sentences&layer=2

const STATE = {
  section: "",
  theme: "",
  sentence: "0",
  show: "attention",
  kind: KINDS[0],
  layer: "1",
  stream: "1",
  head: "1",
  thumbs: "layer",
  gates: "",
  clusters: "",
  clusterHead: "1",
  competition: "",
  mechanism: "1",
  redundancy: "",
  axis: "log",
};
const DEFAULTS = { ...STATE };
const WATCHERS = [];

function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return Object.fromEntries(Object.keys(DEFAULTS).map((key) => [key, given[key] ?? DEFAULTS[key]]));
}

function setState(changes) {
  const changed = Object.keys(changes).filter((key) => STATE[key] !== changes[key]);
  if (!changed.length) return;
  Object.assign(STATE, changes);
  const shown = Object.entries(STATE).filter(([key, value]) => value !== DEFAULTS[key]);
  history.replaceState(null, "", `#${new URLSearchParams(shown)}`);
  for (const { keys, draw } of WATCHERS) if (keys.some((key) => changed.includes(key))) draw();
}

/** A box whose content is drawn anew whenever one of these parts of the state changes. */
function watched(keys, draw) {
  const box = el("div");
  const redraw = () => box.replaceChildren(...[draw()].flat().filter((child) => child !== null));
  WATCHERS.push({ keys, draw: redraw });
  redraw();
  return box;
}

/** A labelled choice; options: [value, text]. What is chosen is kept in the state; where it names none, it is the first. */
function choice(label, key, options) {
  if (!options.some(([value]) => value === STATE[key])) STATE[key] = DEFAULTS[key] = options[0]?.[0] ?? "";
  const id = `choose-${key}`;
  const select = el(
    "select",
    { id, onchange: () => setState({ [key]: select.value }) },
    options.map(([value, text]) => el("option", { value, selected: value === STATE[key] }, text)),
  );
  WATCHERS.push({
    keys: [key],
    draw: () => {
      select.value = STATE[key];
    },
  });
  return el("div", { class: "control" }, el("label", { for: id }, label), select);
}

const SYSTEM_DARK = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const dark = STATE.theme ? STATE.theme === "dark" : SYSTEM_DARK.matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light theme" : "Dark theme";
}
