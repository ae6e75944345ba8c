// The sections on heads over all sentences: attention patterns and redundancy. Each function returns the
// content of its section, or null if no run has the analysis.

function patterns() {
  const runs = having("patterns");
  if (!runs.length) return null;
  return [
    el(
      "p",
      { class: "note" },
      "The attention map of each head for each sentence belongs to one class. Vertical: most queries attend ",
      "to the same one or two keys. Diagonal: they attend to their own word, or in cross-attention to the ",
      "word at the same relative place. Shift forward and backward: they attend to the next or the previous ",
      "word. Soft diagonal: they attend to words around the diagonal. Heterogeneous: none of these. Maps ",
      "with fewer than five queries or keys are not counted.",
    ),
    classLegend(runs[0].analyses.patterns.classes),
    sideBySide(runs, (run) => {
      const { classes, modules } = run.analyses.patterns;
      return [
        table(
          [
            "module",
            el("th", { class: "text", scope: "col" }, "share of heads and sentences"),
            el("th", { class: "text", scope: "col" }, "most frequent class"),
          ],
          byKind(modules, (module) => {
            const most = module.shares.indexOf(Math.max(...module.shares));
            const said = classes.map((name, i) => `${name} ${percent(module.shares[i], 0)}`).join(", ");
            return [
              place(module),
              el(
                "td",
                { class: "stacked" },
                el(
                  "div",
                  { class: "stack", role: "img", "aria-label": said, title: said },
                  module.shares.map((share, i) =>
                    el("i", { "--share": share, "--class": `var(--class-${i})` }),
                  ),
                ),
              ),
              el(
                "td",
                { class: "text" },
                module.shares[most] ? `${classes[most]} ${percent(module.shares[most], 0)}` : "–",
              ),
            ];
          }),
        ),
        el(
          "details",
          {},
          el("summary", {}, "Numbers of sentences in each class, head by head"),
          table(
            ["head", ...classes],
            modules.flatMap((module) => [
              fullPlace(module),
              ...module.heads.map((head, i) => [
                `head ${i + 1}`,
                ...head.counts.map((count) => heat(count, sum(head.counts), grouped(count))),
              ]),
            ]),
          ),
        ),
      ];
    }),
  ];
}

function redundancy() {
  const runs = having("redundancy");
  if (!runs.length) return null;
  const types = unique(
    runs.flatMap((run) =>
      run.analyses.redundancy.types.filter((type) => type.pairs_distance?.length).map((type) => type.type),
    ),
  );
  return [
    el(
      "p",
      { class: "note" },
      "LR is the redundancy of the heads in the same layer, and HR that of all heads of one kind of ",
      "attention. Both are between 0 and 1. Lower values mean that heads differ more. There are two ",
      "definitions. By distance, the redundancy of two heads is 1 minus the Jensen-Shannon distance of ",
      "their weights, averaged over the queries, and a head forms no pair with itself. By divergence, LR ",
      "and HR are those of the released code of the DMA paper's authors, which made the paper's figures: ",
      "LR has the generalised Jensen-Shannon divergence of the heads of a layer, and HR the divergences of ",
      "all pairs, a head with itself included. The paper's figures are by divergence, of the encoder ",
      "self-attention.",
    ),
    sideBySide(runs, (run) => {
      const { types: all, ...model } = run.analyses.redundancy;
      const two = (name, lr, hr) => [
        name,
        number(lr, 4),
        track(lr ?? 0, 1, run),
        number(hr, 4),
        track(hr ?? 0, 1, run),
      ];
      const by = (definition) =>
        table(
          [`by ${definition}`, "LR", "0 to 1", "HR", "0 to 1"],
          [
            two("mean of the kinds", model[`LR_${definition}_all`], model[`HR_${definition}_all`]),
            ...all.map((type) => two(type.type, type[`LR_${definition}`], type[`HR_${definition}`])),
          ],
        );
      return [
        by("distance"),
        by("divergence"),
        el(
          "details",
          {},
          el("summary", {}, "Layer by layer"),
          table(
            ["module", "heads", "LR by distance", "LR by divergence"],
            all.flatMap((type) => [
              type.type,
              ...type.modules.map((module) => [
                place(module),
                module.heads,
                heat(module.LR_distance ?? 0, 1, number(module.LR_distance, 4)),
                heat(module.LR_divergence ?? 0, 1, number(module.LR_divergence, 4)),
              ]),
            ]),
          ),
        ),
      ];
    }),
    types.length
      ? [
          el("h3", {}, "Every pair of heads, by distance"),
          el(
            "div",
            { class: "controls" },
            choice(
              "Kind of attention",
              "redundancy",
              types.map((type) => [type, type]),
            ),
            rampLegend("redundancy"),
          ),
          watched(["redundancy"], () =>
            sideBySide(runs, (run) => {
              const type = run.analyses.redundancy.types.find((one) => one.type === STATE.redundancy);
              if (!type?.pairs_distance?.length) return null;
              const heads = type.modules.flatMap((module) =>
                Array.from({ length: module.heads }, (_, i) => [module, i + 1]),
              );
              const names = heads.map(([module, head]) => `${shortPlace(module)} H${head}`);
              return heatMap({
                label: `Redundancy of pairs of heads by distance, ${type.type}`,
                rows: names,
                columns: names,
                size: names.length > 30 ? 11 : null,
                shade: (row, column) => type.pairs_distance[row][column] ?? 0,
                describe: (row, column) =>
                  `${names[row]} and ${names[column]}: ${number(type.pairs_distance[row][column], 3)}`,
              });
            }),
          ),
        ]
      : [],
  ].flat();
}
