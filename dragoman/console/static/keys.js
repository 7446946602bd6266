// The keyboard: / search, j k move, Enter open, x select, g and a letter go, [ ] views, ? help.
const TYPING = "input, select, textarea, [contenteditable]";
let isGoing = false;

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function move(step) {
  const all = rows();
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  if (!next) return;
  const link = next.querySelector("a");
  link.focus();
  next.scrollIntoView({ block: "nearest" });
  // Which one is selected is in the address: a link to it leads there.
  if (link.id) history.replaceState(null, "", `#${link.id}`);
}

function focusNamed() {
  const link = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (link?.closest("[data-row]")) link.focus();
}

function changeView(step) {
  const views = [...document.querySelectorAll(".tabs a")];
  const at = views.findIndex((view) => view.hasAttribute("aria-current"));
  if (views[at + step]) views[at + step].click();
}

function select() {
  const row = rows().find((one) => one.contains(document.activeElement));
  row?.querySelector("input[type=checkbox]")?.click();
}

const KEYS = {
  "/": () => document.getElementById("search")?.focus(),
  "?": () => document.getElementById("help").showModal(),
  j: () => move(1),
  k: () => move(-1),
  x: select,
  "]": () => changeView(1),
  "[": () => changeView(-1),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest(TYPING)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

export function startKeys() {
  document.addEventListener("keydown", onKey);
  focusNamed();
}
