// The state of the page: what the reader has chosen. Everything that differs from the defaults is in the
// address, so that a view can be linked: #section=sentences&layer=2

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
  pictureMechanism: "1",
  redundancy: "",
  axis: "log",
};
const DEFAULTS = { ...STATE };
const WATCHERS = []; // {keys, draw}: draw() is called when the state of one of the keys has changed

/** Return the state that the address describes. */
function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return Object.fromEntries(Object.keys(DEFAULTS).map((key) => [key, given[key] ?? DEFAULTS[key]]));
}

/** Change the state and the address, and redraw what depends on it. */
function setState(changes) {
  const changed = Object.keys(changes).filter((key) => STATE[key] !== changes[key]);
  if (!changed.length) return;
  Object.assign(STATE, changes);
  const shown = Object.entries(STATE).filter(([key, value]) => value !== DEFAULTS[key]);
  history.replaceState(null, "", `#${new URLSearchParams(shown)}`);
  for (const { keys, draw } of WATCHERS) if (keys.some((key) => changed.includes(key))) draw();
}

/** Make a box with the content draw(), which is replaced whenever the state of one of the keys changes. */
function watched(keys, draw) {
  const box = el("div");
  const redraw = () => box.replaceChildren(...[draw()].flat().filter((child) => child !== null));
  WATCHERS.push({ keys, draw: redraw });
  redraw();
  return box;
}

/**
 * Make a labelled <select> for a key of the state.
 * options: [value, text] of each. If the state has none of the values, it becomes the first.
 */
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

/** Apply the theme that the reader has chosen, or else the theme of the system. */
function applyTheme() {
  const dark = STATE.theme ? STATE.theme === "dark" : SYSTEM_DARK.matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light theme" : "Dark theme";
}
