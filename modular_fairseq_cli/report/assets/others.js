// The section on analyses of plugins, whose data have a table, or timelines: values over time below images
// whose columns are points in time (analysis/timelines.py).

const COLUMN = 2; // pixels of the screen for a point in time
const ROW = 14; // height of a row of values, in pixels of the screen
const BRIGHTEST = 255; // LEVELS of analysis/timelines.py

/** Return an image, or a row of values, as a canvas as wide as the others of its timeline. */
function band({ width, height }, values, label) {
  const size = { width: COLUMN * width, height: height === 1 ? ROW : height };
  return greyCanvas({ width, height }, values, label, size);
}

/** Return a table of the images and rows of a timeline. */
function timeline({ title, seconds, images, rows }) {
  const width = images.length ? images[0].width : Math.max(...Object.values(rows).map((row) => row.length));
  return [
    el("h4", {}, `${title}, ${number(seconds, 1)} s`),
    table(
      ["", "over time"],
      [
        ...images.map((image) => [
          image.label,
          band(
            image,
            image.values.map((value) => value / BRIGHTEST),
            `${title}, ${image.label}`,
          ),
        ]),
        ...Object.entries(rows).map(([label, values]) => [
          label,
          band({ width, height: 1 }, values, `${title}, ${label}`),
        ]),
      ],
    ),
  ];
}

const isFraction = (value) => typeof value === "number" && !Number.isInteger(value);

/** Return a table of rows, with a column for each key that a row has. */
function tableOf(rows) {
  const head = unique(rows.flatMap((row) => Object.keys(row)));
  const digits = new Map(head.map((key) => [key, rows.some((row) => isFraction(row[key])) ? 3 : 0]));
  const shown = (value, key) =>
    typeof value === "number" ? number(value, digits.get(key)) : String(value ?? "");
  return table(
    head,
    rows.map((row) => head.map((key) => shown(row[key], key))),
  );
}

const isOther = ({ table: rows, timelines }) => Array.isArray(rows) || Array.isArray(timelines);

function others() {
  const names = unique(
    RUNS.flatMap((run) => Object.keys(run.analyses).filter((name) => isOther(run.analyses[name]))),
  );
  if (!names.length) return null;
  return names.flatMap((name) => [
    el("h3", {}, name),
    sideBySide(having(name), ({ analyses }) => {
      const { about, table: rows = [], timelines = [] } = analyses[name];
      return [
        ...(typeof about === "string" ? [el("p", { class: "note" }, about)] : []),
        ...(rows.length ? [tableOf(rows)] : []),
        ...(timelines.length
          ? [
              el(
                "p",
                { class: "note" },
                "Time goes from left to right. In rows of values white is 1, and black is 0.",
              ),
            ]
          : []),
        ...timelines.flatMap(timeline),
      ];
    }),
  ]);
}
