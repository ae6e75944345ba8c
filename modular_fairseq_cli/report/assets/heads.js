// What heads do over all sentences: patterns of attention, redundancy.

function patterns() {
  const runs = having("patterns");
  if (!runs.length) return null;
  return [
    el(
      "p",
      { class: "note" },
      "What an attention map looks like, one decision for every head and sentence. Vertical: most queries on one or two keys. ",
      "Diagonal: on the word itself, in cross-attention on the one at the same relative place; ",
      "shifted: on its neighbour; soft: around it. Heterogeneous: over the whole sentence. ",
      "Maps with fewer than five queries or keys are not counted.",
    ),
    classLegend(runs[0].analyses.patterns.classes),
    sideBySide(runs, (run) => {
      const { classes, modules } = run.analyses.patterns;
      return [
        table(
          [
            "module",
            el("th", { class: "text", scope: "col" }, "share of heads and sentences"),
            el("th", { class: "text", scope: "col" }, "most"),
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
              el("td", { class: "text" }, `${classes[most]} ${percent(module.shares[most], 0)}`),
            ];
          }),
        ),
        el(
          "details",
          {},
          el("summary", {}, "Head by head: sentences of each class"),
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
      run.analyses.redundancy.types.filter((type) => type.pairs?.length).map((type) => type.type),
    ),
  );
  return [
    el(
      "p",
      { class: "note" },
      "1 − Jensen-Shannon distance of the weights of two heads, mean over queries: 0 to 1, 1 for equal heads. ",
      "LR: over pairs of heads in a layer, ",
      "HR: over all pairs of a kind of attention. Lower: heads differ more.",
    ),
    sideBySide(runs, (run) => {
      const { LR, HR, types: all } = run.analyses.redundancy;
      const two = (name, lr, hr) => [
        name,
        number(lr, 4),
        track(lr ?? 0, 1, run),
        number(hr, 4),
        track(hr ?? 0, 1, run),
      ];
      return [
        table(
          ["attention", "LR", "0 to 1", "HR", "0 to 1"],
          [two("whole model", LR, HR), ...all.map((type) => two(type.type, type.LR, type.HR))],
        ),
        el(
          "details",
          {},
          el("summary", {}, "Layer by layer"),
          table(
            ["module", "heads", "LR"],
            all.flatMap((type) => [
              type.type,
              ...type.modules.map((module) => [
                place(module),
                module.heads,
                heat(module.LR ?? 0, 1, number(module.LR, 4)),
              ]),
            ]),
          ),
        ),
      ];
    }),
    types.length
      ? [
          el("h3", {}, "Every pair of heads"),
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
              if (!type?.pairs?.length) return null;
              const heads = type.modules.flatMap((module) =>
                Array.from({ length: module.heads }, (_, i) => [module, i + 1]),
              );
              const names = heads.map(([module, head]) => `${shortPlace(module)} H${head}`);
              return heatMap({
                label: `Redundancy of pairs of heads, ${type.type}`,
                rows: names,
                columns: names,
                size: names.length > 30 ? 11 : null,
                shade: (row, column) => type.pairs[row][column] ?? 0,
                describe: (row, column) =>
                  `${names[row]} and ${names[column]}: ${number(type.pairs[row][column], 3)}`,
              });
            }),
          ),
        ]
      : [],
  ].flat();
}
