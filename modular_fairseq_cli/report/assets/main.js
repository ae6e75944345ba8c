// Build the page when it is loaded, and handle its links, keys, theme and print view.

// [id, title, function that returns the content, or null if there is no data for the section].
const SECTIONS = [
  ["overview", null, overview],
  ["training", "Training", training],
  ["gates", "Gates and experts", gates],
  ["single-expert", "One expert", singleExpert],
  ["clusters", "Clusters", clusters],
  ["competition", "Competition", competition],
  ["pictures", "Pictures", pictures],
  ["patterns", "Attention patterns", patterns],
  ["redundancy", "Redundancy of heads", redundancy],
  ["others", "Other analyses", others],
  ["sentences", "Sentence by sentence", sentences],
];

/** Scroll to a section, and give its heading the focus. */
function goTo(id) {
  const section = document.getElementById(id);
  if (!section) return;
  setState({ section: id });
  section.scrollIntoView();
  section.querySelector("h1, h2").focus({ preventScroll: true });
}

/** Mark the link to the section that the reader sees. */
function markSection() {
  const sections = [...document.querySelectorAll("section")];
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const current = atEnd
    ? sections[sections.length - 1]
    : (sections.findLast((section) => section.getBoundingClientRect().top < innerHeight / 3) ?? sections[0]);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${current.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

(() => {
  Object.assign(STATE, readAddress());
  applyTheme();
  const main = document.getElementById("main");
  const nav = document.getElementById("sections");
  for (const [id, title, build] of SECTIONS) {
    const content = build();
    if (!content) continue;
    main.append(
      el(
        "section",
        { id, "aria-labelledby": `${id}-title` },
        title ? el("h2", { id: `${id}-title`, tabindex: "-1" }, title) : null,
        content.flat().filter(Boolean),
      ),
    );
    nav.append(
      el(
        "a",
        {
          href: `#${id}`,
          onclick: (event) => {
            event.preventDefault();
            goTo(id);
          },
        },
        title ?? "Overview",
      ),
    );
  }

  const themed = () => {
    applyTheme();
    redrawMaps();
  };
  WATCHERS.push({ keys: ["theme"], draw: themed });
  document
    .getElementById("theme")
    .addEventListener("click", () =>
      setState({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }),
    );
  SYSTEM_DARK.addEventListener("change", themed);
  matchMedia("print").addEventListener("change", redrawMaps);
  addEventListener("beforeprint", redrawMaps);
  addEventListener("afterprint", redrawMaps);
  addEventListener("hashchange", () => location.reload());
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.addEventListener("keydown", stepByKey);
  document.addEventListener("scroll", markSection, { passive: true });
  markSection();
  if (STATE.section) {
    // The page has its final height only after two frames, when the charts have taken their width.
    const go = () => requestAnimationFrame(() => requestAnimationFrame(() => goTo(STATE.section)));
    addEventListener("load", go);
    document.addEventListener("drawn", go, { once: true });
  }
})();
