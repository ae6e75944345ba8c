// The first screen: what each checkpoint is and does; and its curves over training.

const validSplits = (run) => Object.keys(run.log).filter((split) => !split.startsWith("train"));

/** Rows of the overview: [name, run => [value, explanation] or nothing]. */
const FACTS = [
  ["arch", (run) => [el("code", {}, run.facts.arch), run.facts.task && `task ${run.facts.task}`]],
  ["parameters", (run) => run.facts.parameters && [grouped(run.facts.parameters)]],
  [
    "checkpoint",
    (run) =>
      run.facts.checkpoint && [
        el("code", { title: run.facts.checkpoint }, run.facts.checkpoint.split("/").pop()),
        run.facts.updates && `${grouped(run.facts.updates)} updates${run.facts.epoch ? `, epoch ${run.facts.epoch}` : ""}`,
      ],
  ],
  [
    "data",
    (run) =>
      run.facts.sentences && [
        `${grouped(run.facts.sentences)} sentences`,
        [run.facts.subset, [run.facts.source_lang, run.facts.target_lang].filter(Boolean).join(" → ")].filter(Boolean).join(", "),
      ],
  ],
  [
    "validation perplexity",
    (run) => {
      const curve = run.log[validSplits(run)[0]]?.ppl;
      if (!curve) return null;
      const best = curve.reduce((least, point) => (point[1] < least[1] ? point : least));
      const [update, value] = curve.find(([at]) => at === run.facts.updates) ?? curve[curve.length - 1];
      return [short(value), `at update ${grouped(update)}${update === best[0] ? "" : `; best ${short(best[1])} at ${grouped(best[0])}`}`];
    },
  ],
  [
    "gate entropy",
    (run) => {
      const gates = run.analyses.gates;
      return gates && [`${number(gates.entropy, 3)} nats`, `${percent(gates.entropy / gates.uniform)} of a uniform gate's`];
    },
  ],
  [
    "shares of experts",
    (run) => {
      const gates = run.analyses.gates;
      return (
        gates && [
          `${number(100 * gates.min_share, 1)} to ${percent(gates.max_share)}`,
          `${gates.rare_experts} of ${gates.experts} are rarely chosen`,
        ]
      );
    },
  ],
  [
    "redundancy of heads",
    (run) =>
      run.analyses.redundancy && [
        `LR ${number(run.analyses.redundancy.LR, 3)}, HR ${number(run.analyses.redundancy.HR, 3)}`,
        "1: heads attend alike",
      ],
  ],
  [
    "attention patterns",
    (run) => {
      const patterns = run.analyses.patterns;
      if (!patterns) return null;
      const heads = patterns.modules.flatMap((module) => module.heads);
      const counts = patterns.classes.map((name) => [heads.filter((head) => head.class === name).length, name]).sort((a, b) => b[0] - a[0]);
      const said = counts.filter(([count]) => count).map(([count, name]) => `${name} ${count}`);
      return [said[0], `of ${heads.length} heads${said.length > 1 ? `; ${said.slice(1).join(", ")}` : ""}`];
    },
  ],
  [
    "cluster posteriors",
    (run) => {
      const heads = run.analyses.clusters?.modules.flatMap((module) => module.heads);
      if (!heads?.length) return null;
      const mean = (key) => sum(heads.map((head) => head[key])) / heads.length;
      return [
        `${number(mean("posterior_entropy"), 3)} nats`,
        `mean usage ${number(mean("usage_entropy"), 3)}, uniform ${number(Math.log(heads[0].usage.length), 3)}`,
      ];
    },
  ],
  [
    "competition entropy",
    (run) => {
      const layers = run.analyses.competition?.layers.filter((layer, i, all) => layer.side === all[0].side);
      if (!layers?.length) return null;
      const ends = layers.length > 1 ? [layers[0], layers[layers.length - 1]] : layers;
      return [
        `${ends.map((layer) => number(layer.entropy, 3)).join(" → ")} nats`,
        `${layers.length > 1 ? "first → last layer; " : ""}uniform ${number(layers[0].uniform, 3)}`,
      ];
    },
  ],
];

function overview() {
  const several = RUNS.length > 1;
  const rows = FACTS.map(([name, read]) => [name, RUNS.map(read)])
    .filter(([, values]) => values.some(Boolean))
    .map(([name, values]) => [
      name,
      ...values.map((value) => el("td", { class: "text" }, value ? value[0] : "–", value?.[1] ? el("small", {}, value[1]) : null)),
    ]);
  const heads = RUNS.map((run) =>
    el("th", { scope: "col", class: "text" }, several ? el("i", { "--run": `var(--run-${run.index % 4})` }) : null, run.label),
  );
  const curves = [
    trainingChart("ppl", "Perplexity", "", true) ?? trainingChart("loss", "Loss", "", false),
    trainingChart("gate_entropy", "Gate entropy", "nats", false) ?? trainingChart("kl", "KL of the mixtures", "nats per dimension", false),
  ].filter(Boolean);
  return [
    el("h1", {}, RUNS.map((run) => run.label).join(" · ")),
    el(
      "p",
      { class: "lead" },
      several ? `${RUNS.length} checkpoints side by side. ` : "",
      "What the model does in evaluation mode, teacher-forced, on the data below.",
    ),
    el(
      "div",
      { class: "overview" },
      table(["", ...heads], rows, { class: several ? "facts several" : "facts" }),
      curves.length ? el("div", {}, curves) : null,
    ),
  ];
}

/** The runs of different logs, each the first of those that share one: checkpoints of one training. */
const LOGGED = (() => {
  const logs = RUNS.map((run) => JSON.stringify(run.log));
  return RUNS.filter((run, i) => logs[i] !== "{}" && logs.indexOf(logs[i]) === i).map((run) => ({
    ...run,
    label: RUNS.filter((other, i) => logs[i] === logs[run.index])
      .map((other) => other.label)
      .join(" and "),
  }));
})();

/** Of all runs that logged it: training as a thin line, validation as a strong one with marks. */
function trainingChart(key, title, unit, log, more = {}) {
  const name = (run, what) => (RUNS.length > 1 ? `${run.label}, ${what}` : what);
  const series = LOGGED.flatMap((run) => {
    const inner = run.log.train_inner?.[key] ?? run.log.train?.[key];
    const valid = validSplits(run)
      .filter((split) => run.log[split][key])
      .map((split, i) => ({
        label: name(run, split === "valid" ? "validation" : split),
        run: run.index,
        style: i ? "middle" : "valid",
        dots: run.log[split][key].length < 60,
        points: run.log[split][key],
      }));
    return [...(inner ? [{ label: name(run, "training"), run: run.index, style: "train", points: inner }] : []), ...valid];
  });
  if (!series.length) return null;
  const chart = lineChart({ title, x: "update", y: unit, series, log, ...more });
  chart.legend = lineLegend(series);
  return chart;
}

const LEARNING = [
  ["ppl", "Perplexity", ""],
  ["loss", "Loss", "smoothed, bits per token"],
  ["nll_loss", "Negative log-likelihood", "bits per token"],
  ["bleu", "BLEU", ""],
  ["lr", "Learning rate", ""],
];
const MECHANISMS = [
  ["gate_entropy", "Gate entropy", "nats"],
  ["gate_max_share", "Largest share of an expert", ""],
  ["gate_min_share", "Smallest share of an expert", ""],
  ["gate_rare_experts", "Rare experts", ""],
  ["g_loss", "Loss of G steps", "bits per token"],
  ["kl", "KL of the mixtures", "nats per dimension"],
  ["qq", "Mutual information of heads", "L_qq"],
  ["xq", "Mutual information of input and head", "L_xq"],
];

/** Small charts under one legend. */
function chartGroup(title, charts) {
  const drawn = charts.map(([key, ...rest]) => trainingChart(key, ...rest)).filter(Boolean);
  return drawn.length ? [title ? el("h3", {}, title) : null, drawn[0].legend, el("div", { class: "figures" }, drawn)] : [];
}

function training() {
  if (!LOGGED.length) return null;
  const uniform = RUNS.find((run) => run.analyses.gates)?.analyses.gates.uniform;
  const small = { legend: false };
  return [
    el(
      "p",
      { class: "note" },
      "Thin: training, as logged between validations. Strong: validation. Where a run was resumed, its later values.",
    ),
    el(
      "div",
      { class: "controls" },
      choice("Scale of losses", "axis", [
        ["log", "logarithmic"],
        ["linear", "linear"],
      ]),
    ),
    watched(["axis"], () =>
      chartGroup(
        null,
        LEARNING.map(([key, title, unit]) => [key, title, unit, STATE.axis === "log" && ["ppl", "loss", "nll_loss"].includes(key), small]),
      ),
    ),
    chartGroup(
      "Mechanisms over training",
      MECHANISMS.map(([key, title, unit]) => [
        key,
        title,
        key === "gate_entropy" && uniform ? `nats, uniform ${number(uniform, 3)}` : unit,
        false,
        /share|rare/.test(key) ? { ...small, from: 0 } : small,
      ]),
    ),
    trainingNumbers(),
  ].flat();
}

function trainingNumbers() {
  return LOGGED.map((run) => {
    const split = validSplits(run)[0] ?? Object.keys(run.log)[0];
    const keys = Object.keys(run.log[split]);
    const updates = run.log[split][keys[0]].map(([update]) => update);
    const at = keys.map((key) => new Map(run.log[split][key]));
    return el(
      "details",
      {},
      el("summary", {}, `Numbers: ${RUNS.length > 1 ? `${run.label}, ` : ""}${split}`),
      table(
        ["update", ...keys],
        updates.map((update) => [grouped(update), ...at.map((values) => short(values.get(update)))]),
      ),
    );
  });
}
