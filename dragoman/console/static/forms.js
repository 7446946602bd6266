// Forms that grow, show the fields of a choice, ask before they end something, and follow a slider.
import { say } from "./copying.js";
import { parsed } from "./live.js";
import { writeTimes } from "./times.js";

// A list always ends with an empty row: a further one is the same with the next number.
function addItem(button) {
  const items = button.closest("[data-list]").querySelector("[data-items]");
  const last = items.lastElementChild;
  const number = Number(last.dataset.item);
  const [from, to] = [number, number + 1].map((at) => `${items.dataset.name}/${at}`);
  items.append(parsed(last.outerHTML.replaceAll(from, to)));
  const added = items.lastElementChild;
  added.dataset.item = String(number + 1);
  for (const field of added.querySelectorAll("input:not([type=checkbox], [type=radio]), textarea")) field.value = "";
  for (const label of added.querySelectorAll("label, legend")) {
    label.textContent = label.textContent.replace(/\d+(?=\s*$)/, String(number + 2));
  }
  added.querySelector("input, select, textarea")?.focus();
}

function filter(form) {
  for (const field of form.elements) if (field.value === "") field.disabled = true;
}

function unfold(select) {
  for (const part of select.form.querySelectorAll("details[data-of]")) part.open = part.dataset.of === select.value;
}

let asked;
async function follow(form) {
  asked?.abort();
  asked = new AbortController();
  const address = `${form.action}?${new URLSearchParams(new FormData(form))}`;
  const answer = await fetch(address, { signal: asked.signal });
  const page = parsed(await answer.text());
  for (const part of page.querySelectorAll("[data-follows]")) {
    document.getElementById(part.id)?.replaceWith(part);
    writeTimes(part);
  }
  history.replaceState(null, "", address);
}

export function startForms() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-add]");
    if (button) addItem(button);
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
    else if (event.target.matches("[data-filter]")) filter(event.target);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-filter] select")) event.target.form.requestSubmit();
    else if (event.target.matches("[data-unfolds]")) unfold(event.target);
  });
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (!form?.matches("[data-follow]")) return;
    const output = form.querySelector(`output[for="${event.target.id}"]`);
    if (output) output.textContent = event.target.value;
    follow(form).catch((error) => { if (error.name !== "AbortError") say("That did not work"); });
  });
}
