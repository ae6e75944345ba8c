// The overview, which is the first screen of the page, and the section on the training.

/** Return the splits of the log of a run that are not "train" or "train_inner". */
const validSplits = (run) => Object.keys(run.log).filter((split) => !split.startsWith("train"));

/**
 * The rows of the table of the overview, each as [name, read]. read(run) returns [value, explanation], or
 * a false value if the run does not have it.
 */
const FACTS = [
  [
    "arch",
    (run) => run.facts.arch && [el("code", {}, run.facts.arch), run.facts.task && `task ${run.facts.task}`],
  ],
  ["parameters", (run) => run.facts.parameters && [grouped(run.facts.parameters)]],
  [
    "checkpoint",
    (run) =>
      run.facts.checkpoint && [
        el("code", {}, run.facts.checkpoint),
        run.facts.updates &&
          `${grouped(run.facts.updates)} updates${run.facts.epoch ? `, epoch ${run.facts.epoch}` : ""}`,
      ],
  ],
  [
    "data",
    (run) =>
      run.facts.sentences && [
        `${grouped(run.facts.sentences)} ${run.analyses.pictures ? "pictures" : "sentences"}`,
        [run.facts.subset, [run.facts.source_lang, run.facts.target_lang].filter(Boolean).join(" → ")]
          .filter(Boolean)
          .join(", "),
      ],
  ],
  [
    "validation perplexity in the log",
    (run) => {
      const curve = run.log[validSplits(run)[0]]?.ppl;
      if (!curve) return null;
      const best = curve.reduce((least, point) => (point[1] < least[1] ? point : least));
      const [update, value] = curve.find(([at]) => at === run.facts.updates) ?? curve[curve.length - 1];
      const other = update === best[0] ? "" : `; best ${short(best[1])} at ${grouped(best[0])}`;
      return [short(value), `at update ${grouped(update)}${other}`];
    },
  ],
  [
    "gate entropy",
    (run) => {
      const found = run.analyses.gates;
      return (
        found && [
          `${number(found.entropy, 3)} nats`,
          `${percent(found.entropy / found.uniform)} of a uniform gate's entropy`,
        ]
      );
    },
  ],
  [
    "shares of experts",
    (run) => {
      const found = run.analyses.gates;
      return (
        found && [
          `${number(100 * found.min_share, 1)} to ${percent(found.max_share)}`,
          `${found.rare_experts} of ${found.experts} have under 1 % of the instances`,
        ]
      );
    },
  ],
  [
    "redundancy of heads",
    (run) => {
      const found = run.analyses.redundancy;
      if (!found) return null;
      const both = (which) =>
        ["LR", "HR"].map((name) => `${name} ${number(found[`${name}_${which}`], 3)}`).join(", ");
      return [
        `${both("distance_all")} (distance, all maps)`,
        `${both("divergence_encoder")} (divergence, encoder); 1 means that heads attend alike`,
      ];
    },
  ],
  [
    "attention patterns",
    (run) => {
      const found = run.analyses.patterns;
      if (!found) return null;
      const heads = found.modules.flatMap((module) => module.heads);
      const counts = found.classes
        .map((name) => [heads.filter((head) => head.class === name).length, name])
        .toSorted((a, b) => b[0] - a[0]);
      const said = counts.filter(([count]) => count).map(([count, name]) => `${name} ${count}`);
      return [said[0], `of ${heads.length} heads${said.length > 1 ? `; ${said.slice(1).join(", ")}` : ""}`];
    },
  ],
  [
    "cluster posterior entropy",
    (run) => {
      const heads = run.analyses.clusters?.modules.flatMap((module) => module.heads);
      if (!heads?.length) return null;
      const mean = (key) => sum(heads.map((head) => head[key])) / heads.length;
      return [
        `${number(mean("posterior_entropy"), 3)} nats`,
        `entropy of the usage ${number(mean("usage_entropy"), 3)}; ` +
          `uniform ${number(Math.log(heads[0].usage.length), 3)}`,
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
        `${layers[0].module.split(".")[0]}${layers.length > 1 ? ", first → last layer" : ""}; ` +
          `uniform ${number(layers[0].uniform, 3)}`,
      ];
    },
  ],
];

/** Return the content of the overview. */
function overview() {
  const several = RUNS.length > 1;
  const analyzed = RUNS.some((run) => run.sentences.length || Object.keys(run.analyses).length);
  const rows = FACTS.map(([name, read]) => [name, RUNS.map(read)])
    .filter(([, values]) => values.some(Boolean))
    .map(([name, values]) => [
      name,
      ...values.map((value) =>
        el("td", { class: "text" }, value ? value[0] : "–", value?.[1] ? el("small", {}, value[1]) : null),
      ),
    ]);
  const heads = RUNS.map((run) =>
    el(
      "th",
      { scope: "col", class: "text" },
      several ? el("i", { "--run": runColour(run.index) }) : null,
      run.label,
    ),
  );
  const curves = [
    trainingChart("ppl", { log: true }) ?? trainingChart("loss"),
    trainingChart("gate_entropy") ?? trainingChart("kl"),
  ].filter(Boolean);
  return [
    el("h1", { id: "overview-title", tabindex: "-1" }, RUNS.map((run) => run.label).join(" · ")),
    el(
      "p",
      { class: "lead" },
      several ? `${RUNS.length} ${analyzed ? "checkpoints" : "trainings"} side by side. ` : "",
      analyzed
        ? "All numbers are of the model in evaluation mode, with teacher forcing, on the data named below."
        : "All numbers are from the logs of fairseq-train.",
    ),
    el(
      "div",
      { class: "overview" },
      table(["", ...heads], rows, { class: several ? "facts several" : "facts" }),
      curves.length ? el("div", {}, curves) : null,
    ),
  ];
}

/**
 * The runs with different logs. Checkpoints of the same training share a log, and the first of them stands
 * for all, with all their labels.
 */
const LOGGED = (() => {
  const logs = RUNS.map((run) => JSON.stringify(run.log));
  return RUNS.filter((run, i) => logs[i] !== "{}" && logs.indexOf(logs[i]) === i).map((run) => ({
    ...run,
    label: RUNS.filter((other, i) => logs[i] === logs[run.index])
      .map((other) => other.label)
      .join(" and "),
  }));
})();

/** Return what a line shows, after the label of its run if there are several. */
const lineName = (run, what) => (RUNS.length > 1 ? `${run.label}, ${what}` : what);

/**
 * Make the chart of a curve of the logs, or return null if no run has logged it.
 * key: the key of the curve in the log; more: further arguments of `lineChart`.
 */
function trainingChart(key, more = {}) {
  const { title, unit } = CURVES.get(key);
  const series = LOGGED.flatMap((run) => {
    const inner = run.log.train_inner?.[key] ?? run.log.train?.[key];
    const valid = validSplits(run)
      .filter((split) => run.log[split][key])
      .map((split, i) => ({
        label: lineName(run, split === "valid" ? "validation" : split),
        run: run.index,
        style: ["valid", "middle", "minor"][Math.min(i, 2)],
        dots: run.log[split][key].length < 60,
        points: run.log[split][key],
      }));
    return [
      ...(inner ? [{ label: lineName(run, "training"), run: run.index, style: "train", points: inner }] : []),
      ...valid,
    ];
  });
  if (!series.length) return null;
  const chart = lineChart({ title, x: "update", y: unit, series, ...more });
  chart.series = series;
  return chart;
}

/**
 * Return charts of some groups of curves, with one title and one legend.
 * more: more(key) returns further arguments of `lineChart` for the curve of this key.
 */
function chartGroup(title, groups, more) {
  const keys = [...CURVES].filter(([, { group }]) => groups.includes(group)).map(([key]) => key);
  const drawn = keys.map((key) => trainingChart(key, { legend: false, ...more(key) })).filter(Boolean);
  const named = new Map(drawn.flatMap((chart) => chart.series.map((each) => [each.label, each])));
  return drawn.length
    ? [
        title ? el("h3", {}, title) : null,
        lineLegend([...named.values()]),
        el("div", { class: "figures" }, drawn),
      ]
    : [];
}

/** Return the entropy of a uniform gate, such as ", uniform 2.079", or one for each run if they differ. */
function uniformGates() {
  const known = having("gates").map((run) => [run.label, number(run.analyses.gates.uniform, 3)]);
  const values = unique(known.map(([, value]) => value));
  if (!values.length) return "";
  const each = known.map(([label, value]) => `${value} (${label})`).join(", ");
  return `, uniform ${values.length > 1 ? each : values[0]}`;
}

/** Return the content of the section on the training, or null if no run has a log. */
function training() {
  if (!LOGGED.length) return null;
  return [
    el(
      "p",
      { class: "note" },
      "Thin lines are training values, which are logged between validations; thick lines are validation ",
      "values. If a resumed run repeated updates, its values are shown.",
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
      chartGroup(null, ["learning"], (key) => ({
        log: STATE.axis === "log" && ["ppl", "loss", "nll_loss"].includes(key),
      })),
    ),
    chartGroup("Mechanisms over training", ["gates", "losses"], (key) => {
      if (key === "gate_entropy") return { y: `nats${uniformGates()}` };
      return /share|rare/.test(key) ? { from: 0 } : {};
    }),
    trainingNumbers(),
  ].flat();
}

/** Return a folded table of the validation values of each log. */
function trainingNumbers() {
  return LOGGED.map((run) => {
    const split = validSplits(run)[0] ?? Object.keys(run.log)[0];
    const keys = Object.keys(run.log[split]);
    const updates = unique(keys.flatMap((key) => run.log[split][key].map(([update]) => update))).toSorted(
      (a, b) => a - b,
    );
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
