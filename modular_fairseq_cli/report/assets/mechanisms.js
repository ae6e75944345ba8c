// The sections on gates, experts, clusters and the competition over all sentences. Each function returns the
// content of its section, or null if no run has the analysis.

/** Return the options of a choice among the modules in several lists. */
const moduleChoices = (lists) => unique(lists.flat().map(fullPlace)).map((where) => [where, where]);
/** Return the module that was chosen with `moduleChoices`, if it is among these. */
const chosenModule = (modules, where) => modules?.find((module) => fullPlace(module) === where);

/** Make a cell with indicative tokens and their pointwise mutual information (PMI). */
function tokenCell(tokens) {
  return el(
    "td",
    { class: "tokens" },
    tokens.length
      ? tokens
          .map(({ token, pmi, count, total }) => [
            el(
              "span",
              { title: `PMI ${number(pmi)} nats; ${count} of its ${total} occurrences` },
              bdi(token),
              el("small", {}, ` ${number(pmi)}`),
            ),
            " ",
          ])
          .flat()
      : el("small", {}, "no token is frequent enough"),
  );
}

function gates() {
  const runs = having("gates");
  const experts = having("experts");
  if (!runs.length && !experts.length) return null;
  const most = Math.max(
    ...runs.flatMap((run) => run.analyses.gates.modules.flatMap((module) => module.shares)),
  );
  return [
    runs.length
      ? el(
          "p",
          { class: "note" },
          "This section shows the gates of the mixture of attentive experts. The share of an expert is the ",
          "share of the instances for which it has the largest gate. An instance is a sentence if the gate ",
          "sees all of it, and a position otherwise. The last two columns are the entropy of the gate, and ",
          "its share of ln E, which a uniform gate over E experts has. If one expert has nearly all ",
          "instances, the mixture has collapsed (“rich get richer”). If all shares are alike and the ",
          "entropy is near ln E, the gate has learnt nothing.",
        )
      : null,
    runs.length ? el("h3", {}, "Instances at each expert, in %, and entropy of the gates") : null,
    sideBySide(runs, (run) => {
      const modules = run.analyses.gates.modules;
      const width = Math.max(...modules.map((module) => module.shares.length));
      const indices = Array.from({ length: width }, (_, i) => i);
      return table(
        ["module", ...indices.map((i) => `E${i + 1}`), "nats", "of uniform"],
        byKind(modules, (module) => [
          place(module),
          ...indices.map((i) =>
            i < module.shares.length ? heat(module.shares[i], most, number(100 * module.shares[i], 1)) : "",
          ),
          number(module.entropy, 3),
          percent(module.entropy / module.uniform),
        ]),
      );
    }),
    experts.length
      ? [
          el("h3", {}, "Indicative tokens of each expert"),
          el(
            "p",
            { class: "note" },
            "The tokens with the largest pointwise mutual information (PMI) of token and expert, log ",
            "p(token, expert) / (p(token) p(expert)), in nats. They have at least ",
            `${experts[0].analyses.experts.minimum_count} occurrences.`,
          ),
          el(
            "div",
            { class: "controls" },
            choice("Module", "gates", moduleChoices(experts.map((run) => run.analyses.experts.modules))),
          ),
          watched(["gates"], () =>
            sideBySide(experts, (run) => {
              const module = chosenModule(run.analyses.experts.modules, STATE.gates);
              return module
                ? table(
                    ["expert", el("th", { class: "text", scope: "col" }, `tokens (${module.side})`)],
                    module.experts.map((tokens, i) => [`E${i + 1}`, tokenCell(tokens)]),
                  )
                : null;
            }),
          ),
        ]
      : [],
  ].flat();
}

/** The section on translation with one expert in every attention layer. */
function singleExpert() {
  const runs = having("single-expert");
  if (!runs.length) return null;
  return [
    el(
      "p",
      { class: "note" },
      "The model translates with the mixture, with the most specialised expert of each layer (the one with ",
      "the largest gate), or with a random expert of each layer. BLEU is tokenised and covers a part of the ",
      "data, so compare it among these rows only.",
    ),
    sideBySide(runs, (run) => {
      const { options, rows } = run.analyses["single-expert"];
      return [
        table(
          ["experts", "BLEU", "deviation", "difference", "BLEU of each draw"],
          rows.map(({ inference, scores, BLEU, deviation, difference }) => [
            inference,
            number(BLEU),
            number(deviation),
            `${difference > 0 ? "+" : ""}${number(difference)}`,
            scores.length > 1 ? scores.map((score) => number(score)).join(", ") : "",
          ]),
        ),
        options ? el("p", { class: "note" }, "Options of the translation: ", el("code", {}, options)) : null,
      ].filter(Boolean);
    }),
  ];
}

/** Return the clusters of the chosen head of a run. */
const chosenClusters = (run) =>
  chosenModule(run.analyses.clusters.modules, STATE.clusters)?.heads[STATE.clusterHead - 1];

function clusters() {
  const runs = having("clusters");
  if (!runs.length) return null;
  const heads = Math.max(
    ...runs.flatMap((run) => run.analyses.clusters.modules.map((module) => module.heads.length)),
  );
  return [
    el(
      "p",
      { class: "note" },
      "This section shows the semantic clusters of disentangled mask attention. The usage of a cluster is ",
      "its mean posterior, and “largest” is the share of the tokens for which it is the most probable ",
      "cluster. If the entropy of a posterior is far below that of the usage, the clusters tell tokens ",
      "apart.",
    ),
    el(
      "div",
      { class: "controls" },
      choice("Module", "clusters", moduleChoices(runs.map((run) => run.analyses.clusters.modules))),
      choice(
        "Head",
        "clusterHead",
        Array.from({ length: heads }, (_, i) => [String(i + 1), `head ${i + 1}`]),
      ),
    ),
    watched(["clusters", "clusterHead"], () => {
      const most = Math.max(...runs.flatMap((run) => chosenClusters(run)?.usage ?? []));
      return sideBySide(runs, (run) => {
        const head = chosenClusters(run);
        return head
          ? [
              el(
                "p",
                {},
                `Entropy in nats: usage ${number(head.usage_entropy, 3)}, `,
                `posterior ${number(head.posterior_entropy, 3)} (mean), `,
                `uniform distribution ${number(Math.log(head.usage.length), 3)}.`,
              ),
              table(
                [
                  "cluster",
                  "usage",
                  "",
                  "largest",
                  el("th", { class: "text", scope: "col" }, "indicative tokens, PMI"),
                ],
                head.usage.map((usage, i) => [
                  `C${i + 1}`,
                  percent(usage),
                  track(usage, most, run),
                  percent(head.shares[i]),
                  tokenCell(head.tokens[i]),
                ]),
              ),
            ]
          : null;
      });
    }),
  ];
}

/** Return the layers of a run for which the competition of each token is known, with their tokens. */
const layersWithTokens = (run) =>
  (run.analyses.competition.tokens ?? []).map(({ module, tokens }) => ({
    ...competitionLayer(run, module),
    tokens,
  }));

/** Return the correlations between the layers of each side of a run that has several. */
const correlations = (run) =>
  (run.analyses.competition.correlation ?? []).filter(({ layers }) => layers.length > 1);

function competition() {
  const runs = having("competition");
  if (!runs.length) return null;
  const mechanisms = Math.max(...runs.map((run) => run.analyses.competition.mechanisms));
  const tokens = runs.map(layersWithTokens);
  const correlated = runs.filter((run) => correlations(run).length);
  return [
    el(
      "p",
      { class: "note" },
      "Independent mechanisms compete for every position; the competition c sums to 1 over them. A low ",
      "entropy means that one mechanism clearly wins. If each of n mechanisms has 1 / n, none wins.",
    ),
    sideBySide(runs, (run) =>
      el(
        "div",
        { class: "figures" },
        unique(run.analyses.competition.layers.map((layer) => layer.side)).map((side) => {
          const layers = run.analyses.competition.layers.filter((layer) => layer.side === side);
          const line = (label, style, value, legend = label) => ({
            label,
            legend,
            style,
            run: run.index,
            dots: style === "valid",
            points: layers.map((layer, i) => [i + 1, value(layer)]),
          });
          if (layers.length === 1) {
            const { entropy, percentiles, uniform } = layers[0];
            return table(
              [side, "mean", ...Object.keys(percentiles).map((p) => `${p} %`), "uniform"],
              [
                [
                  place(layers[0]),
                  ...[entropy, ...Object.values(percentiles), uniform].map((value) => number(value, 3)),
                ],
              ],
            );
          }
          return lineChart({
            title: `Entropy of the competition, ${side}`,
            x: "layer",
            y: "nats",
            names: layers.map(place),
            from: 0,
            series: [
              line("mean", "valid", (layer) => layer.entropy),
              line("median", "middle", (layer) => layer.percentiles["50"]),
              line("25 %", "train", (layer) => layer.percentiles["25"], "25 and 75 %"),
              line("75 %", "train", (layer) => layer.percentiles["75"], null),
              line("5 %", "minor", (layer) => layer.percentiles["5"], "5 and 95 %"),
              line("95 %", "minor", (layer) => layer.percentiles["95"], null),
              line("uniform", "bound", (layer) => layer.uniform),
            ],
          });
        }),
      ),
    ),
    el("h3", {}, "Mean competition"),
    sideBySide(runs, (run) =>
      table(
        ["layer", ...Array.from({ length: mechanisms }, (_, i) => `c${i + 1}`)],
        run.analyses.competition.layers.map((layer) => [
          fullPlace(layer),
          ...layer.mean.map((mean) => heat(mean, 1, number(mean, 3))),
        ]),
      ),
    ),
    correlated.length
      ? [
          el("h3", {}, "Correlation between layers"),
          el(
            "p",
            { class: "note" },
            "Pearson's correlation of c between two layers over the positions, averaged over the ",
            "mechanisms. Red: a mechanism wins the same words in both layers. Blue: it wins other words.",
          ),
          sideBySide(correlated, (run) =>
            correlations(run).flatMap(({ side, layers: names, matrix }) => {
              const layers = names.map((name) => competitionLayer(run, name));
              return [
                el("h4", {}, side),
                table(
                  ["", ...layers.map(shortPlace)],
                  matrix.map((row, i) => [
                    place(layers[i]),
                    ...row.map((value) => signedHeat(value, number(value))),
                  ]),
                ),
              ];
            }),
          ),
        ]
      : [],
    tokens.flat().length
      ? [
          el("h3", {}, "Competition by token"),
          el(
            "p",
            { class: "note" },
            "For each of the most frequent tokens, a bar shows the range of c, and a mark its mean. A wide ",
            "bar means that the context of the token decides.",
          ),
          el(
            "div",
            { class: "controls" },
            choice("Layer", "competition", moduleChoices(tokens)),
            choice(
              "Mechanism",
              "mechanism",
              Array.from({ length: mechanisms }, (_, i) => [String(i + 1), `mechanism ${i + 1}`]),
            ),
          ),
          watched(["competition", "mechanism"], () =>
            sideBySide(runs, (run) => {
              const rows = chosenModule(layersWithTokens(run), STATE.competition)?.tokens;
              const i = STATE.mechanism - 1;
              return rows?.length && i < rows[0].mean.length
                ? table(
                    ["token", "count", "min", "mean", "max", "0 to 1"],
                    rows.map((row) => [
                      bdi(row.token),
                      grouped(row.count),
                      number(row.min[i]),
                      number(row.mean[i]),
                      number(row.max[i]),
                      el(
                        "td",
                        { class: "bar" },
                        el(
                          "span",
                          { class: "track range" },
                          el("i", {
                            "--from": row.min[i],
                            "--to": row.max[i],
                            "--run": runColour(run.index),
                          }),
                          el("b", { "--at": row.mean[i] }),
                        ),
                      ),
                    ]),
                  )
                : null;
            }),
          ),
        ]
      : [],
  ].flat();
}
