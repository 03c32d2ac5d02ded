"use strict";
(() => {
  const field = (id) => document.getElementById(id);
  const [search, pool, zone, found] = ["search", "pool", "zone", "found"].map(field);
  if (!search) return;
  // A replacement in another zone has both zones, with a space between them.
  const name = (select, key) => {
    const values = new Set([...document.querySelectorAll(`[data-${key}]`)].flatMap((item) => item.dataset[key].split(" ")));
    const options = [...values].filter(Boolean).sort().map((value) => new Option(value, value));
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...options);
    select.value = values.has(chosen) ? chosen : "";
  };
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const item of document.querySelectorAll("[data-text]")) {
      const text = item.dataset.text.toLowerCase();
      const fits = (select, value) => !select.value || value === undefined || value.split(" ").includes(select.value);
      const shown = words.every((word) => text.includes(word))
        && fits(pool, item.dataset.pool) && fits(zone, item.dataset.zone);
      item.hidden = !shown;
    }
    const active = words.length || pool.value || zone.value;
    // A line of equal nodes is shown if one of them is.
    for (const part of document.querySelectorAll(".node:has(.node)")) {
      part.hidden = !part.querySelector(".node:not([hidden])");
      if (active && !part.hidden) part.open = true;
    }
    for (const node of document.querySelectorAll(".node:not([hidden])")) if (!node.querySelector(".node")) count += 1;
    for (const part of document.querySelectorAll(".pool")) {
      const some = part.querySelector(".node:not([hidden])");
      part.hidden = !some;
      if (active && some) part.open = true;
    }
    found.textContent = active ? `${count} ${count === 1 ? "line" : "lines"}` : "";
  };
  const refresh = () => {
    for (const control of document.querySelectorAll("[data-script]")) control.hidden = !document.querySelector(".node");
    name(pool, "pool");
    name(zone, "zone");
    filter();
  };
  // The rows of changes that the filters show, as RFC 4180. A cell that begins like a formula gets an apostrophe.
  const csv = () => {
    const head = ["change", "node", "type", "zone", "capacity", "pods", "$/h", "reason"];
    const plain = (cell) => {
      const copy = (cell.querySelector("summary") ?? cell).cloneNode(true);
      for (const symbol of copy.querySelectorAll("[aria-hidden]")) symbol.remove();
      return copy.textContent.trim();
    };
    const cells = (row) => [...row.children].map(plain);
    const rows = [...document.querySelectorAll(".changes tbody tr:not([hidden])")].map(cells);
    const quote = (text) => `"${text.replace(/^(?=[=+@\t\r-])/, "'").replaceAll('"', '""')}"`;
    return [head, ...rows].map((row) => row.map(quote).join(",") + "\r\n").join("");
  };
  field("csv").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    link.download = "changes.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 80); });
  for (const select of [pool, zone]) select.addEventListener("change", filter);
  document.addEventListener("fleet-replaced", refresh);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, select, textarea")) {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "Escape" && event.target === search) { search.value = ""; filter(); }
  });
  refresh();
})();
