// Ids and commands are copied by a click, or by Enter where they have the focus.
const said = () => document.getElementById("said");

export function say(text) {
  said().textContent = text;
}

async function copy(element) {
  await navigator.clipboard.writeText(element.dataset.copy);
  const before = element.title;
  element.title = "Copied";
  say("Copied");
  setTimeout(() => { element.title = before; }, 1500);
}

function copyAt(target) {
  const element = target.closest("[data-copy]");
  if (element) copy(element).catch(() => say("The browser does not allow copying"));
}

export function startCopying() {
  document.addEventListener("click", (event) => { if (!getSelection().toString()) copyAt(event.target); });
  document.addEventListener("keydown", (event) => {
    // On the thing itself: a field or link inside another one has its own Enter.
    if (event.key === "Enter" && event.target.matches("[data-copy]")) copyAt(event.target);
  });
}
