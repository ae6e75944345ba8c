// Maps of cells: one canvas pixel a cell, enlarged by CSS; with names of rows and columns, a readout, and a frame that arrow keys move.

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** 256 colours from the page's background to the strongest, as [r, g, b]: lightness goes one way. */
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

/** A canvas of rows x columns cells; shade(row, column) is from 0 to 1. */
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

function redrawMaps() {
  const colours = ramp();
  for (const canvas of document.querySelectorAll("canvas")) canvas.draw(colours);
}

/**
 * rows, columns: names. shade: as above. describe(row, column): what the readout says. In a stepping map, plain arrow keys are left to the
 * view it stands in, and Shift with an arrow key moves the frame.
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
      "aria-label": `${label}, ${rows.length} rows, ${columns.length} columns. ${stepping ? "Shift and arrow" : "Arrow"} keys read cells.`,
      onpointermove: (event) => {
        const bounds = cells.getBoundingClientRect();
        point(
          Math.floor(((event.clientY - bounds.top) / bounds.height) * rows.length),
          Math.floor(((event.clientX - bounds.left) / bounds.width) * columns.length),
        );
      },
      onkeydown: (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[
          event.key
        ];
        if (!step || event.shiftKey !== stepping || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        event.stopPropagation();
        point(...(at ? [at[0] + step[0], at[1] + step[1]] : [0, 0]));
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

/** The colours with their values; root: a value is shown by its square root, so that small attention weights can be seen. */
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
