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

export function startCopying() {
  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-copy]");
    if (element && !getSelection().toString()) copy(element).catch(() => say("The browser does not allow copying"));
  });
}
