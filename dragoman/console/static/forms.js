// Forms that grow, ask before they end something, and follow a slider.
import { say } from "./copying.js";
import { parsed } from "./live.js";
import { writeTimes } from "./times.js";

function addItem(button) {
  const list = button.closest("[data-list]");
  const next = Number(list.dataset.next);
  const item = parsed(list.querySelector("template").innerHTML.replaceAll("__next__", String(next)));
  list.dataset.next = String(next + 1);
  list.querySelector("[data-items]").append(item);
  list.querySelector("[data-items]").lastElementChild.querySelector("input, select, textarea")?.focus();
}

function filter(form) {
  for (const field of form.elements) if (field.value === "") field.disabled = true;
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
    const button = event.target.closest("[data-add], [data-remove]");
    if (button?.matches("[data-add]")) addItem(button);
    else if (button) button.closest("[data-item]").remove();
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
    else if (event.target.matches("[data-filter]")) filter(event.target);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-filter] select")) event.target.form.requestSubmit();
  });
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (!form?.matches("[data-follow]")) return;
    const output = form.querySelector(`output[for="${event.target.id}"]`);
    if (output) output.textContent = event.target.value;
    follow(form).catch((error) => { if (error.name !== "AbortError") say("That did not work"); });
  });
}
