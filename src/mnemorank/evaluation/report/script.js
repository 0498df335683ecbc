"use strict";
(() => {
  const { models, failures } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const STEP = 25;
  let shown = STEP;

  const element = (name, kind, ...children) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    node.append(...children);
    return node;
  };

  const option = (value, text) => {
    const node = element("option", "", text);
    node.value = value;
    return node;
  };

  const score = (value) => (value === null ? "not scored" : value.toFixed(3));

  const side = (kind, title, memory) => {
    const head = element("div", "head", element("span", "", title));
    if (memory) head.append(element("span", "score", score(memory.score)));
    return element("div", `side ${kind}`, head, element("p", "", memory ? memory.text : "not among the candidates"));
  };

  const card = (failure) => {
    const rank = failure.rank === null ? "relevant memory not ranked" : `relevant memory at rank ${failure.rank} of ${failure.candidates}`;
    const head = element("div", "question", element("b", "", failure.query));
    const tags = element("div", "tags", element("span", "tag", models[failure.system]), element("span", "tag", rank));
    if (failure.kind) tags.append(element("span", "tag", failure.kind));
    const sides = element("div", "sides");
    sides.append(side("wrong", "ranked first", failure.first), side("right", "most highly ranked relevant memory", failure.relevant));
    return element("article", "", head, tags, sides);
  };

  const matching = () => {
    const model = byId("model").value;
    const kind = byId("kind").value;
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    return failures.filter((failure) => {
      if (model !== "" && failure.system !== Number(model)) return false;
      if (kind !== "" && failure.kind !== kind) return false;
      const text = [failure.query, failure.first.text, failure.relevant ? failure.relevant.text : ""].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  };

  const show = () => {
    const found = matching();
    byId("count").textContent = `${found.length} ${found.length === 1 ? "failure" : "failures"}`;
    byId("failures").replaceChildren(...found.slice(0, shown).map(card));
    byId("more").hidden = found.length <= shown;
  };

  const restart = () => {
    shown = STEP;
    show();
  };

  byId("model").append(option("", "all"), ...models.map((name, index) => option(String(index), name)));
  byId("model").value = models.length ? "0" : "";
  const kinds = [...new Set(failures.map((failure) => failure.kind))].filter(Boolean).sort();
  byId("kind").append(option("", "all"), ...kinds.map((kind) => option(kind, kind)));
  for (const id of ["model", "kind", "search"]) byId(id).addEventListener("input", restart);
  byId("more").addEventListener("click", () => {
    shown += STEP;
    show();
  });

  for (const button of document.querySelectorAll("#measures button")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("#measures button")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      for (const chart of document.querySelectorAll(".kind")) {
        chart.hidden = chart.dataset.measure !== button.dataset.measure;
      }
    });
  }

  show();
})();
