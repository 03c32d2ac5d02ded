"use strict";
(() => {
  const link = document.getElementById("link");
  const parts = [...document.querySelectorAll("[data-live]")];
  // What the user opened or is typing stays as it is.
  // A node is known by its address, the first word, and by its state; a shared line by its first node.
  const keys = (root) => [...root.querySelectorAll("details")].map((d, i) =>
    [d, d.dataset.text ? `${d.className} ${d.dataset.text.split(" ")[0]} ${d.querySelector("details") ? "shared" : ""}`
      : i + d.firstElementChild.textContent.replace(/\d+/g, "")]);
  const isFilled = (f) => f.matches("input:not([type=hidden])") && f.value !== f.defaultValue
    || f.matches("select") && f.selectedIndex > 0;
  const isTyping = (root) => root.contains(document.activeElement) && document.activeElement.matches("input,select,button")
    || [...root.querySelectorAll("form")].some((form) => [...form.elements].some(isFilled));
  const replace = (root, fresh) => {
    const before = new Map(keys(root).map(([d, key]) => [key, d.open]));
    root.replaceChildren(...fresh.childNodes);
    for (const [d, key] of keys(root)) if (before.has(key)) d.open = before.get(key);
  };
  const load = async () => {
    if (parts.some(isTyping) || document.hidden) return;
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const scrolled = window.scrollY;
    for (const root of parts) replace(root, page.getElementById(root.id));
    // A screen reader announces the verdict only if it changes.
    const [verdict, fresh] = [document, page].map((one) => one.getElementById("verdict"));
    if (verdict.innerHTML !== fresh.innerHTML) {
      verdict.className = fresh.className;
      verdict.replaceChildren(...fresh.childNodes);
    }
    document.title = page.title;
    document.dispatchEvent(new Event("fleet-replaced"));
    window.scrollTo(0, scrolled);
  };
  const failed = () => { link.textContent = "not connected"; link.className = "del"; };
  const events = new EventSource("/events");
  events.addEventListener("open", () => { link.textContent = "live"; link.className = "add"; });
  events.addEventListener("error", failed);
  let missed = false;
  const reload = () => load().catch(failed);
  events.addEventListener("status", () => { missed = document.hidden; reload(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && missed) { missed = false; reload(); } });
})();
