// The figures of one sentence: attention and mask maps, and beside them gates, clusters and the competition.

const UNPACKED = new Map(); // promises of the arrays of a block, by the id of its element

/** Return a promise of the arrays of a sentence by "KIND/NAME", each as {shape, values: Uint8Array}. */
function unpack(run, sentence) {
  const id = `block-${run}-${sentence}`;
  if (!UNPACKED.has(id)) {
    UNPACKED.set(
      id,
      (async () => {
        const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (character) =>
          character.charCodeAt(0),
        );
        const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
        const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
        const arrays = {};
        let offset = 0;
        for (const [name, shape] of Object.entries(RUNS[run].shapes[sentence])) {
          const size = shape.reduce((product, length) => product * length, 1);
          arrays[name] = { shape, values: bytes.subarray(offset, offset + size) };
          offset += size;
        }
        return arrays;
      })(),
    );
  }
  return UNPACKED.get(id);
}

/** The square root of a quantised number, and the number itself. */
const rootOf = (level) => level / DATA.levels;
const valueOf = (level) => rootOf(level) ** 2;

/**
 * Return one head of an array [H, T, S], or the mean over its heads, as {rows, columns, value(row, column)}.
 * head: its number from 1, or "mean".
 */
function headOf({ shape: [heads, rows, columns], values }, head) {
  const at = (h, row, column) => valueOf(values[(h * rows + row) * columns + column]);
  if (head !== "mean") return { rows, columns, value: (row, column) => at(head - 1, row, column) };
  const means = new Float32Array(rows * columns);
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < means.length; i++) means[i] += valueOf(values[h * means.length + i]) / heads;
  return { rows, columns, value: (row, column) => means[row * columns + column] };
}

const headName = (head) => (head === "mean" ? "mean of heads" : `head ${head}`);

/** Return the content of the column of a run for the chosen sentence. */
function sentenceOf(run, sentence, arrays) {
  const module = run.modules.find(
    (one) =>
      one.kind === STATE.kind &&
      one.layer === Number(STATE.layer) &&
      (!one.stream || one.stream === Number(STATE.stream)),
  );
  const tokens = module && (module.kind === KINDS[0] ? sentence.source : sentence.target_in);
  const beside = [
    ...(module ? [...gatesOf(run, arrays, module, tokens), ...clustersOf(arrays, module, tokens)] : []),
    ...competitionOf(run, arrays, sentence),
  ];
  const words = (title, list) =>
    el("p", { class: "sentence" }, el("b", {}, title), list.map((token) => [bdi(token), " "]).flat());
  const [first, second] = titles(sentence);
  return [
    sentence.source ? words(first, sentence.source) : null,
    words(second, sentence.target),
    el(
      "div",
      {
        class:
          Math.max(sentence.source?.length ?? 0, sentence.target_in.length) > 34 ? "parts long" : "parts",
      },
      el(
        "div",
        {},
        module
          ? maps(run, sentence, arrays, module)
          : el("p", { class: "note" }, "This checkpoint has no such layer."),
      ),
      beside.length ? el("div", {}, beside) : null,
    ),
  ];
}

/** Return what the source and the target of a sentence are called. */
function titles(sentence) {
  if (!sentence.source) return ["", "text"];
  if (!sentence.target_in.length) return ["masked text", sentence.translated ? "filled in" : "text"];
  return ["source", sentence.translated ? "translation" : "reference"];
}

/** Return small maps of all heads, and the map of the chosen one. */
function maps(run, sentence, arrays, module) {
  const queries = module.kind === KINDS[0] ? sentence.source : sentence.target_in;
  const keys = module.kind === KINDS[1] ? sentence.target_in : sentence.source;
  const predicts = (row) => (module.kind === KINDS[0] ? "" : ` (predicts ${sentence.target[row]})`);
  const array = arrays[`${STATE.show}/${module.module}`];
  if (!array)
    return el("p", { class: "note" }, `This checkpoint has no ${SHOWN[STATE.show]} in this module.`);
  const head = STATE.head === "mean" || Number(STATE.head) <= array.shape[0] ? STATE.head : "mean";
  const map = headOf(array, head);
  const name = [SHOWN[STATE.show], module.kind, place(module), headName(head)].join(", ");
  return [
    thumbnails(run, arrays, module),
    el(
      "div",
      { class: "chosen" },
      el("h4", {}, name[0].toUpperCase() + name.slice(1)),
      module.kind === KINDS[0]
        ? null
        : el("p", { class: "note" }, "A row is for a word that is read; the model predicts the next word."),
      heatMap({
        label: name,
        rows: queries,
        columns: keys,
        stepping: true,
        shade: (row, column) => Math.sqrt(map.value(row, column)),
        describe: (row, column) => [
          bdi(queries[row]),
          predicts(row),
          " → ",
          bdi(keys[column]),
          `: ${number(map.value(row, column), 3)}`,
        ],
      }),
    ),
  ];
}

/** Make small maps of the heads of a module, or of all modules of its kind; a click chooses a head. */
function thumbnails(run, arrays, chosen) {
  const modules =
    STATE.thumbs === "all" ? run.modules.filter((module) => module.kind === STATE.kind) : [chosen];
  const heads = Math.max(...modules.map((module) => module.heads));
  const box = el("div", {
    class: modules.length > 1 ? "thumbs all" : "thumbs",
    role: "group",
    "aria-label": "Choose a head",
    "--heads": heads,
  });
  for (const module of modules) {
    if (modules.length > 1) box.append(el("span", {}, place(module)));
    const array = arrays[`${STATE.show}/${module.module}`];
    for (let head = 1; head <= heads; head++) {
      if (!array || head > array.shape[0]) {
        box.append(el("span"));
        continue;
      }
      const map = headOf(array, head);
      const pressed = module === chosen && STATE.head === String(head);
      box.append(
        el(
          "button",
          {
            type: "button",
            class: "thumb",
            "aria-pressed": String(pressed),
            "aria-label": `${place(module)}, head ${head}`,
            onclick: () =>
              show({
                layer: String(module.layer),
                ...(module.stream ? { stream: String(module.stream) } : {}),
                head: String(head),
              }),
          },
          cellCanvas(map.rows, map.columns, (row, column) => Math.sqrt(map.value(row, column))),
          modules.length > 1 ? null : `head ${head}`,
        ),
      );
    }
  }
  return box;
}

const gateValue = ({ shape, values }, row, expert) => valueOf(values[row * shape[1] + expert]);
const expertNames = (count) => Array.from({ length: count }, (_, i) => `E${i + 1}`);

/**
 * Return the gates of a sentence: a table of all gates that see the whole sentence, and a map for the chosen
 * module if it has a gate for every position.
 */
function gatesOf(run, arrays, module, tokens) {
  const all = run.modules.map((one) => [one, arrays[`gates/${one.module}`]]).filter(([, array]) => array);
  const whole = all.filter(([, { shape }]) => shape[0] === 1);
  const own = all.find(([one, { shape }]) => one === module && shape[0] > 1)?.[1];
  return [
    whole.length
      ? [
          el("h4", {}, "Gates of this sentence"),
          table(
            ["module", ...expertNames(Math.max(...whole.map(([, { shape }]) => shape[1])))],
            whole.map(([one, array]) => {
              const values = expertNames(array.shape[1]).map((_, i) => gateValue(array, 0, i));
              return [fullPlace(one), ...values.map((value) => heat(value, 1, number(value)))];
            }),
          ),
        ]
      : [],
    own
      ? [
          el("h4", {}, `Gates of ${fullPlace(module)}, position by position`),
          heatMap({
            label: "Gates",
            columns: tokens,
            rows: expertNames(own.shape[1]),
            size: 20,
            shade: (row, column) => gateValue(own, column, row),
            describe: (row, column) => [
              bdi(tokens[column]),
              `: E${row + 1} ${number(gateValue(own, column, row), 3)}`,
            ],
          }),
        ]
      : [],
  ].flat();
}

/** Return the tokens in the colours of their most probable clusters, and a map of the posteriors. */
function clustersOf(arrays, module, tokens) {
  const array = arrays[`clusters/${module.module}`];
  if (!array) return [];
  const head = STATE.head === "mean" || Number(STATE.head) <= array.shape[0] ? STATE.head : "mean";
  const posterior = headOf(array, head);
  const names = Array.from({ length: posterior.columns }, (_, i) => `C${i + 1}`);
  const likeliest = tokens.map((_, row) =>
    names.reduce((best, __, i) => (posterior.value(row, i) > posterior.value(row, best) ? i : best), 0),
  );
  return [
    el("h4", {}, `Clusters, ${fullPlace(module)}, ${headName(head)}`),
    el(
      "p",
      { class: "sentence" },
      tokens
        .map((token, row) => [
          el(
            "span",
            {
              class: "token",
              "--class": `var(--class-${likeliest[row] % 8})`,
              title: `cluster ${likeliest[row] + 1}: ${number(posterior.value(row, likeliest[row]))}`,
            },
            bdi(token),
            el("sub", {}, String(likeliest[row] + 1)),
          ),
          " ",
        ])
        .flat(),
    ),
    heatMap({
      label: "Posteriors of the clusters",
      rows: names,
      columns: tokens,
      size: 20,
      shade: (row, column) => posterior.value(column, row),
      describe: (row, column) => [
        bdi(tokens[column]),
        `: cluster ${row + 1}, ${number(posterior.value(column, row), 3)}`,
      ],
    }),
  ];
}

/**
 * Return a map of the competition for each side, with a row for each layer and mechanism. Of two mechanisms
 * it has only the first, as the other one has 1 minus its values.
 */
function competitionOf(run, arrays, sentence) {
  return [
    ["encoder", "source"],
    ["decoder", "target_in"],
  ].flatMap(([side, which]) => {
    const layers = run.competition_layers.filter(
      (layer) => layer.startsWith(side) && arrays[`competition/${layer}`],
    );
    const tokens = sentence[which];
    if (!layers.length || !tokens) return [];
    const rows = layers.flatMap((layer) => {
      const { shape, values } = arrays[`competition/${layer}`];
      const where = competitionLayer(run, layer);
      return Array.from({ length: shape[1] === 2 ? 1 : shape[1] }, (_, i) => ({
        name: `${shortPlace(where)} c${i + 1}`,
        full: `${place(where)} c${i + 1}`,
        value: (column) => valueOf(values[column * shape[1] + i]),
      }));
    });
    return [
      el("h4", {}, `Competition over the ${side === "encoder" ? "source" : "target"}`),
      heatMap({
        label: `Competition, ${side}`,
        rows: rows.map((row) => row.name),
        columns: tokens,
        size: 20,
        shade: (row, column) => rows[row].value(column),
        describe: (row, column) => [
          bdi(tokens[column]),
          `: ${rows[row].full} ${number(rows[row].value(column), 3)}`,
        ],
      }),
    ];
  });
}
