// Maps of coloured cells. Each cell is one pixel of a canvas, which CSS enlarges. A map has names of rows and
// columns, a readout, and a frame around the cell that is read, which arrow keys move.

/** Return the value of a CSS variable of the page. */
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return 256 colours [r, g, b] of monotonic lightness, from the background of the page to the strongest. */
function ramp() {
  const stops = css("--ramp")
    .split(/\s+/)
    .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((from, channel) =>
      Math.round(from + (stops[low + 1][channel] - from) * (at - low)),
    );
  });
}

/** Make a canvas of rows x columns cells, whose colours are given by shade(row, column) in [0, 1]. */
function cellCanvas(rows, columns, shade) {
  const canvas = el("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  canvas.draw = (colours) => {
    const image = new ImageData(columns, rows);
    for (let row = 0, at = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, at += 4) {
        const [r, g, b] = colours[Math.round(255 * Math.min(1, Math.max(0, shade(row, column))))];
        image.data.set([r, g, b, 255], at);
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  };
  canvas.draw(ramp());
  return canvas;
}

/** Draw all maps again, with the colours of another theme. */
function redrawMaps() {
  const colours = ramp();
  for (const canvas of document.querySelectorAll("canvas:not(.picture)")) canvas.draw(colours);
}

/**
 * Make a map.
 * label: its name for screen readers.
 * rows, columns: the names of rows and columns.
 * shade: see `cellCanvas`.
 * describe: describe(row, column) returns the content of the readout for a cell.
 * stepping: true leaves plain arrow keys to the section; then Shift with an arrow key moves the frame.
 * size: the width of a cell in pixels; null chooses it by the number of cells.
 */
function heatMap({ label, rows, columns, shade, describe, stepping = false, size = null }) {
  const longest = Math.max(rows.length, columns.length);
  const cell =
    size ?? (longest <= 12 ? 30 : longest <= 20 ? 24 : longest <= 34 ? 17 : longest <= 48 ? 14 : 12);
  const canvas = cellCanvas(rows.length, columns.length, shade);
  const name = (text) => el("span", { title: text }, bdi(text));
  const rowNames = rows.map(name);
  const columnNames = columns.map(name);
  const frame = el("div", { class: "frame", hidden: true });
  const readout = el("output", { class: "readout", "aria-live": "polite" });
  let at = null;

  /** Move the frame to a cell, or to the nearest one inside the map, and read it out. */
  function point(row, column) {
    if (at && at[0] === row && at[1] === column) return;
    for (const marked of [...rowNames, ...columnNames]) marked.classList.remove("on");
    at = [Math.max(0, Math.min(rows.length - 1, row)), Math.max(0, Math.min(columns.length - 1, column))];
    rowNames[at[0]].classList.add("on");
    columnNames[at[1]].classList.add("on");
    fill(frame, { hidden: false, "--row": at[0], "--column": at[1] }, []);
    readout.replaceChildren(...[describe(...at)].flat());
  }

  const cells = el(
    "div",
    {
      class: "cells",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of cells",
      "aria-label":
        `${label}, ${rows.length} rows, ${columns.length} columns. ` +
        `${stepping ? "Shift and arrow" : "Arrow"} keys read cells.`,
      onpointermove: (event) => {
        const bounds = cells.getBoundingClientRect();
        point(
          Math.floor(((event.clientY - bounds.top) / bounds.height) * rows.length),
          Math.floor(((event.clientX - bounds.left) / bounds.width) * columns.length),
        );
      },
      onkeydown: (event) => {
        const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
          event.key
        ];
        if (!move || event.shiftKey !== stepping || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        event.stopPropagation();
        point(...(at ? [at[0] + move[0], at[1] + move[1]] : [0, 0]));
        frame.scrollIntoView({ block: "nearest", inline: "nearest" });
      },
    },
    canvas,
    frame,
  );
  return el(
    "figure",
    {
      class: "heatmap",
      "--size": `${cell}px`,
      "--font": `${Math.min(13, Math.max(10, cell - 3))}px`,
      "--rows": rows.length,
      "--columns": columns.length,
    },
    el(
      "div",
      { class: "boxed" },
      el(
        "div",
        { class: "map" },
        el("div", { class: "columns", "aria-hidden": "true" }, columnNames),
        el("div", { class: "rows", "aria-hidden": "true" }, rowNames),
        cells,
      ),
    ),
    readout,
  );
}

/**
 * Make the legend of the colours of maps.
 * root: the colour shows the square root of a value, which makes small attention weights visible.
 */
function rampLegend(text, root = false) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((at) => String(Number((root ? at * at : at).toFixed(2))));
  return el(
    "div",
    { class: "ramp" },
    el("span", {}, text),
    el(
      "div",
      {},
      cellCanvas(1, 64, (row, column) => column / 63),
      el(
        "div",
        { class: "ticks" },
        ticks.map((tick) => el("span", {}, tick)),
      ),
    ),
  );
}
