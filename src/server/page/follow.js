"use strict";
(() => {
  const link = document.getElementById("link");
  const root = document.getElementById("live");
  // What somebody opened, or is typing, stays as it is.
  const keys = () => [...root.querySelectorAll("details")].map((d, i) => [d, i + d.firstElementChild.textContent]);
  const isFilled = (f) => f.matches("input:not([type=hidden])") && f.value !== f.defaultValue
    || f.matches("select") && f.selectedIndex > 0;
  const isTyping = () => root.contains(document.activeElement) && document.activeElement.matches("input,select,button")
    || [...root.querySelectorAll("form")].some((form) => [...form.elements].some(isFilled));
  const load = async () => {
    if (isTyping() || document.hidden) return;
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set(keys().filter(([d]) => d.open).map(([, key]) => key));
    const scrolled = window.scrollY;
    root.replaceChildren(...page.getElementById("live").childNodes);
    for (const [d, key] of keys()) d.open = open.has(key);
    const search = document.getElementById("search");
    if (search.value) search.dispatchEvent(new Event("input"));
    window.scrollTo(0, scrolled);
  };
  const failed = () => { link.textContent = "not connected"; link.className = "del"; };
  const events = new EventSource("/events");
  events.addEventListener("open", () => { link.textContent = "live"; link.className = "add"; });
  events.addEventListener("error", failed);
  let missed = false;
  const news = () => load().catch(failed);
  events.addEventListener("status", () => { missed = document.hidden; news(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && missed) { missed = false; news(); } });
})();
