"use strict";
(() => {
  const search = document.getElementById("search");
  const count = document.getElementById("found");
  for (const control of document.querySelectorAll("[data-script]")) control.hidden = false;
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    // Asked for each time: on the page of a controller they come and go.
    for (const item of document.querySelectorAll("[data-text]")) {
      const text = item.dataset.text.toLowerCase();
      const shown = words.every((word) => text.includes(word));
      item.hidden = !shown;
      if (shown && item.tagName === "TR") found += 1;
    }
    count.textContent = words.length ? found + " rows" : "";
  };
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 80);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "Escape" && event.target === search) {
      search.value = "";
      filter();
    }
  });
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
