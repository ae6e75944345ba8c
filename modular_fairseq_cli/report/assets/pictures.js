// The section on pictures: where in pictures the mechanisms of each layer are active.

const ZOOM = 4; // pixels of the screen for a pixel of a picture

/**
 * Return a canvas of a picture in raster order.
 * colourOf(i): returns the red, green and blue of a pixel.
 * size: its width and height in pixels of the screen.
 */
function pictureCanvas(
  { width, height },
  colourOf,
  label,
  size = { width: ZOOM * width, height: ZOOM * height },
) {
  const canvas = el("canvas", { width, height, class: "picture", role: "img", "aria-label": label });
  canvas.style.width = `${size.width}px`;
  canvas.style.height = `${size.height}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set([...colourOf(i), 255], 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Return a map of values from 0 (black) to 1 (white). */
const greyCanvas = (shape, values, label, size) =>
  pictureCanvas(
    shape,
    (i) => {
      const level = Math.round(255 * values[i]);
      return [level, level, level];
    },
    label,
    size,
  );

/** Return the rows of the table of the maps: the mean over pictures, and then single pictures. */
function mapRows(found, mechanism) {
  const m = Math.min(mechanism, found.layers[0].mean.length) - 1;
  const mean = found.layers.map((layer) =>
    greyCanvas(found, layer.mean[m], `mean over pictures of c${m + 1} in ${place(layer)}`),
  );
  const single = found.pictures.map((numbers, index) => [
    pictureCanvas(
      found,
      (i) => {
        const colour = found.palette[numbers[i]];
        return colour.length === 3 ? colour : [colour[0], colour[0], colour[0]];
      },
      `picture ${index + 1}`,
    ),
    ...found.layers.map((layer) =>
      greyCanvas(found, layer.single[index][m], `picture ${index + 1}, c${m + 1} in ${place(layer)}`),
    ),
  ]);
  return [["mean", ...mean], ...single];
}

/** Return whether the activations of a run differ anywhere, so that they have an eta squared. */
const hasValue = (run) => (run.analyses.pictures.layers[0]?.eta_squared ?? null) !== null;

/** Return a chart of eta squared over training, if the runs are of one training, seen on the same data. */
function specialisation(runs) {
  const known = runs.filter((run) => run.facts.updates && hasValue(run));
  const trainings = unique(
    known.map((run) => [run.training, run.facts.arch, run.facts.data, run.facts.subset].join(" ")),
  );
  if (trainings.length !== 1 || unique(known.map((run) => run.facts.updates)).length < 2) return null;
  const inOrder = known.toSorted((one, other) => one.facts.updates - other.facts.updates);
  const names = inOrder[0].analyses.pictures.layers.map(place);
  return lineChart({
    title: "Eta squared over training",
    x: "updates",
    y: "eta squared",
    from: 0,
    series: names.map((label, layer) => ({
      label,
      legend: label,
      style: "valid",
      run: layer % 6, // of which there are colours
      dots: true,
      points: inOrder
        .filter((run) => run.analyses.pictures.layers[layer])
        .map((run) => [run.facts.updates, run.analyses.pictures.layers[layer].eta_squared]),
    })),
  });
}

/** Return the maps of the runs that have mechanisms, for one of the mechanisms. */
function activationMaps(runs, mechanisms) {
  return [
    el("h3", {}, "Maps"),
    el(
      "div",
      { class: "controls" },
      choice(
        "Mechanism",
        "pictureMechanism",
        Array.from({ length: mechanisms }, (_, i) => [String(i + 1), `mechanism ${i + 1}`]),
      ),
    ),
    watched(["pictureMechanism"], () =>
      sideBySide(runs, (run) => {
        const found = run.analyses.pictures;
        return table(["picture", ...found.layers.map(place)], mapRows(found, Number(STATE.pictureMechanism)));
      }),
    ),
  ];
}

function pictures() {
  const runs = having("pictures");
  if (!runs.length) return null;
  const withMaps = runs.filter((run) => run.analyses.pictures.layers.length);
  const mechanisms = Math.max(0, ...withMaps.map((run) => run.analyses.pictures.layers[0].mean.length));
  const withRegions = runs.filter((run) => Object.keys(run.analyses.pictures.regions).length);
  return [
    el(
      "p",
      { class: "note" },
      "At each pixel the activations c of the mechanisms sum to 1. Maps show where a mechanism is active: ",
      "white is 1, and black is 0.",
    ),
    withRegions.length
      ? [
          el("h3", {}, "Regions"),
          el(
            "p",
            { class: "note" },
            "Eta squared is the variance of c between the regions of a picture, as a share of its variance ",
            "over pixels. It is 1 if each mechanism is active in one region only. Controls are the eta ",
            "squared of the brightness, and of the shares of heads in what a self-attention writes.",
          ),
          sideBySide(withRegions, (run) => {
            const found = run.analyses.pictures;
            const regions = Object.keys(found.regions);
            const numbers = (found.layers[0]?.mean ?? []).map((_, m) => m);
            const heads = regions.flatMap((name) => numbers.map((m) => `c${m + 1}, ${name}`));
            return table(
              ["layer", "eta squared", ...heads],
              [
                ...found.layers.map((layer) => [
                  place(layer),
                  heat(layer.eta_squared ?? 0, 1, number(layer.eta_squared, 3)),
                  ...regions.flatMap((name) => layer.regions[name].map((value) => number(value, 3))),
                ]),
                ...[
                  ["brightness", found.brightness],
                  ...found.heads.map((each) => [`heads, ${place(each)}`, each.eta_squared]),
                ].map(([name, value]) => [
                  name,
                  number(value, 3),
                  ...regions.flatMap(() => numbers.map(() => "")),
                ]),
              ],
            );
          }),
          specialisation(withRegions),
        ]
      : [],
    ...(withMaps.length ? activationMaps(withMaps, mechanisms) : []),
  ];
}
