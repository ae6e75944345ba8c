// Line charts in SVG, read out at the pointer or, with the focus on them, by arrow keys.

const MARGIN = { left: 52, right: 14, top: 10, bottom: 38 };

function niceSteps(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const steps = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step)
    steps.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return steps;
}

function logSteps(low, high) {
  const steps = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) steps.push(factor * 10 ** power);
  }
  const inside = steps.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 7
    ? inside.filter((value) => /^1/.test(value.toExponential()))
    : inside.length > 1
      ? inside
      : [low, high];
}

/**
 * series: [{label, legend, run, style, dots, points: [[x, y], ...]}], where `legend` stands for several lines, null for none; `run` is the
 * index of its colour; `style` is train, valid, middle, minor or bound. legend: whether to draw one. names: what to call x = 1, 2, ...;
 * without it x is a number. log: of y. from, to: of y where the data are to be seen in all of a range.
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
  const xs = unique(series.flatMap((s) => s.points.map(([x]) => x))).sort((a, b) => a - b);
  const box = el("div");
  const readout = el("output", { class: "readout", "aria-live": "polite" });
  let drawn = 0;

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
        "aria-label": `${title}. Arrow keys left and right read its values.`,
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

/** Runs differ in the shape of their marks as well as in colour. */
function marker(run, x, y, attributes) {
  if (run === 1) return svg("rect", { class: "dot", x: x - 3, y: y - 3, width: 6, height: 6, ...attributes });
  if (run === 2) return svg("path", { class: "dot", d: `M${x} ${y - 4}l4 7h-8z`, ...attributes });
  if (run === 3)
    return svg("path", { class: "dot", d: `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z`, ...attributes });
  if (run === 4) return svg("path", { class: "dot", d: `M${x - 4} ${y}h8M${x} ${y - 4}v8`, ...attributes });
  if (run === 5) return svg("path", { class: "dot", d: `M${x} ${y + 4}l4 -7h-8z`, ...attributes });
  return svg("circle", { class: "dot", cx: x, cy: y, r: 3, ...attributes });
}

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

function classLegend(names) {
  return el(
    "ul",
    { class: "legend" },
    names.map((name, i) => el("li", {}, el("i", { "--class": `var(--class-${i % 8})` }), name)),
  );
}
