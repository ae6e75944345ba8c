// Line charts in SVG. The pointer reads their values, and so do arrow keys if the chart has the focus.

const MARGIN = { left: 52, right: 14, top: 10, bottom: 38 };

/** Return about `count` round numbers between two numbers, at equal distances. */
function niceSteps(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const distance = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const steps = [];
  for (let value = Math.ceil(low / distance) * distance; value <= high + distance * 1e-6; value += distance)
    steps.push(Math.abs(value) < distance * 1e-6 ? 0 : value);
  return steps;
}

/** Return round numbers between two numbers for a logarithmic axis: powers of ten, and more if few are. */
function logSteps(low, high) {
  const steps = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) steps.push(factor * 10 ** power);
  }
  const inside = steps.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 7
    ? inside.filter((value) => value.toExponential().startsWith("1"))
    : inside.length > 1
      ? inside
      : [low, high];
}

/**
 * Make a chart of lines.
 * title, x, y: the titles of the chart and its axes.
 * series: the lines, each with
 *   label: its name in the readout;
 *   legend: its text in the legend if that differs, or null to leave the line out of the legend;
 *   run: the index of the run whose colour it has;
 *   style: "train", "valid", "middle", "minor" or "bound", see .line in page.css;
 *   dots: whether its points are marked;
 *   points: [x, y] of each.
 * names: the names of x = 1, 2, ...; null: x is a number.
 * log: whether the scale of y is logarithmic.
 * from, to: values of y that the chart must include; null: none.
 * legend: whether there is a legend.
 */
function lineChart({
  title,
  x: xTitle,
  y: yTitle,
  series,
  names = null,
  log = false,
  from = null,
  to = null,
  legend = true,
}) {
  series = series
    .map((s) => ({ ...s, points: s.points.filter(([, y]) => y !== null && (!log || y > 0)) }))
    .filter((s) => s.points.length);
  const xs = unique(series.flatMap((s) => s.points.map(([x]) => x))).toSorted((a, b) => a - b);
  const box = el("div");
  const readout = el("output", { class: "readout", "aria-live": "polite" });
  let drawn = 0;

  /** Draw the chart with a width in pixels. */
  function draw(width) {
    const height = Math.round(Math.min(290, Math.max(220, width * 0.5)));
    const ys = series.flatMap((s) => s.points.map(([, y]) => y));
    let [low, high] = [Math.min(...ys, from ?? Infinity), Math.max(...ys, to ?? -Infinity)];
    if (low === high)
      [low, high] = log
        ? [low / 2, high * 2]
        : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
    else if (!log) [low, high] = [from ?? low - (high - low) * 0.04, high + (high - low) * 0.04];
    const [first, last] = [xs[0], xs[xs.length - 1]];
    const scale = (value) => (log ? Math.log(value) : value);
    const X = (value) =>
      MARGIN.left +
      (last === first ? 0.5 : (value - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
    const Y = (value) =>
      height -
      MARGIN.bottom -
      ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (height - MARGIN.top - MARGIN.bottom);
    const cursor = svg("line", {
      class: "cursor",
      y1: MARGIN.top,
      y2: height - MARGIN.bottom,
      visibility: "hidden",
    });
    const xSteps = names ? xs : niceSteps(first, last, Math.max(3, Math.floor(width / 75)));
    let at = -1;

    /** Move the cursor to a value of x, given by its index, and read its values out. */
    function point(index) {
      at = Math.max(0, Math.min(xs.length - 1, index));
      const x = xs[at];
      fill(cursor, { x1: X(x), x2: X(x), visibility: "visible" }, []);
      const values = series
        .map((s) => [s.label, s.points.find(([other]) => other === x)?.[1]])
        .filter(([, y]) => y !== undefined);
      const where = names ? names[x - 1] : `${xTitle} ${grouped(x)}`;
      readout.textContent = `${where}: ${values.map(([label, y]) => `${label} ${short(y)}`).join("; ")}`;
    }

    const chart = svg(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${height}`,
        role: "application",
        "aria-roledescription": "line chart",
        tabindex: "0",
        "aria-label": `${title}. The left and right arrow keys read its values.`,
        onpointermove: (event) => {
          const bounds = chart.getBoundingClientRect();
          const here = ((event.clientX - bounds.left) / bounds.width) * width;
          point(
            xs.reduce((best, x, i) => (Math.abs(X(x) - here) < Math.abs(X(xs[best]) - here) ? i : best), 0),
          );
        },
        onkeydown: (event) => {
          if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
          event.preventDefault();
          point(at < 0 ? 0 : at + (event.key === "ArrowRight" ? 1 : -1));
        },
      },
      (log ? logSteps(low, high) : niceSteps(low, high, 5))
        .map((value) => [
          svg("line", {
            class: "grid",
            x1: MARGIN.left,
            x2: width - MARGIN.right,
            y1: Y(value),
            y2: Y(value),
          }),
          svg("text", { x: MARGIN.left - 7, y: Y(value) + 4, "text-anchor": "end" }, short(value)),
        ])
        .flat(),
      xSteps.map((value) =>
        svg(
          "text",
          { x: X(value), y: height - MARGIN.bottom + 17, "text-anchor": "middle" },
          names ? names[value - 1].replace(/^layer /, "") : grouped(value),
        ),
      ),
      svg(
        "text",
        { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 4, "text-anchor": "middle" },
        xTitle,
      ),
      cursor,
      series
        .map((s) => {
          const run = { "--run": runColour(s.run) };
          const path = s.points
            .map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`)
            .join("");
          return [
            svg("path", { class: `line ${s.style}`, d: path, ...run }),
            s.dots ? s.points.map(([x, y]) => marker(s.run, X(x), Y(y), run)) : [],
          ].flat();
        })
        .flat(),
    );
    const focused = box.contains(document.activeElement);
    box.replaceChildren(chart);
    if (focused) chart.focus({ preventScroll: true });
  }

  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width > 40 && width !== drawn && !matchMedia("print").matches) draw((drawn = width));
  }).observe(box);
  draw(480);
  return el(
    "figure",
    {},
    el("figcaption", { class: "title" }, title, yTitle ? el("small", {}, `, ${yTitle}`) : null),
    box,
    legend ? lineLegend(series) : null,
    readout,
  );
}

/** Make the mark of a point at (x, y). Its shape tells runs apart for readers who see no colours. */
function marker(run, x, y, attributes) {
  if (run === 1) return svg("rect", { class: "dot", x: x - 3, y: y - 3, width: 6, height: 6, ...attributes });
  if (run === 2) return svg("path", { class: "dot", d: `M${x} ${y - 4}l4 7h-8z`, ...attributes });
  if (run === 3)
    return svg("path", { class: "dot", d: `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z`, ...attributes });
  if (run === 4) return svg("path", { class: "dot", d: `M${x - 4} ${y}h8M${x} ${y - 4}v8`, ...attributes });
  if (run === 5) return svg("path", { class: "dot", d: `M${x} ${y + 4}l4 -7h-8z`, ...attributes });
  return svg("circle", { class: "dot", cx: x, cy: y, r: 3, ...attributes });
}

/** Make the legend of the lines of a chart; see `lineChart` for `series`. */
function lineLegend(series) {
  return el(
    "ul",
    { class: "legend" },
    series
      .filter((s) => s.legend !== null)
      .map((s) => {
        const run = { "--run": runColour(s.run) };
        return el(
          "li",
          {},
          svg(
            "svg",
            { viewBox: "0 0 30 12", "aria-hidden": "true" },
            svg("path", { class: `line ${s.style}`, d: "M0 6H30", ...run }),
            s.dots ? marker(s.run, 15, 6, run) : null,
          ),
          s.legend ?? s.label,
        );
      }),
  );
}

/** Make the legend of the colours of classes. */
function classLegend(names) {
  return el(
    "ul",
    { class: "legend" },
    names.map((name, i) => el("li", {}, el("i", { "--class": `var(--class-${i % 8})` }), name)),
  );
}
