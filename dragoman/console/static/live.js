// The parts of a page that change: one stream, and each part replaced in place.
//
// What a person has in hand stays: the focus, what is typed, what is selected, what is unfolded.
const policy = window.trustedTypes
  ? trustedTypes.createPolicy("dragoman", { createHTML: (text) => text })
  : { createHTML: (text) => text };

export function parsed(text) {
  const holder = document.createElement("template");
  holder.innerHTML = policy.createHTML(text);
  return holder.content;
}

function isBusy(part) {
  const selection = getSelection();
  if (!selection.isCollapsed && part.contains(selection.anchorNode)) return true;
  const field = document.activeElement;
  return part.contains(field) && field.matches("input:not([type=checkbox]), select, textarea");
}

function held(part) {
  return {
    focus: part.contains(document.activeElement) ? document.activeElement.id : "",
    unfolded: [...part.querySelectorAll("details[open][id]")].map((one) => one.id),
    checked: [...part.querySelectorAll("input:checked")].map((one) => one.value),
    rows: new Set([...part.querySelectorAll("[data-row]")].map((one) => one.dataset.row)),
    scrolled: [...part.querySelectorAll("[data-scroll]")].map((one) => one.scrollLeft),
  };
}

function putBack(part, state) {
  for (const id of state.unfolded) document.getElementById(id)?.setAttribute("open", "");
  for (const box of part.querySelectorAll("input[type=checkbox]")) {
    box.checked = state.checked.includes(box.value);
  }
  part.querySelectorAll("[data-scroll]").forEach((one, at) => { one.scrollLeft = state.scrolled[at] ?? 0; });
  if (state.rows.size) {
    for (const row of part.querySelectorAll("[data-row]")) {
      if (!state.rows.has(row.dataset.row)) row.classList.add("is-new");
    }
  }
  if (state.focus) document.getElementById(state.focus)?.focus({ preventScroll: true });
}

export function replace(part, html, after) {
  const state = held(part);
  part.replaceChildren(parsed(html));
  putBack(part, state);
  after(part);
}

export function startLive(after) {
  const page = document.body.dataset.page;
  if (!page) return;
  const parts = [...document.querySelectorAll("[data-live]")];
  const seen = new Map(parts.map((part) => [part.id, part.dataset.live]));
  const late = new Map();
  // One stream at a time: another is opened after a pause, or when the page is looked at again.
  let source;
  let pause;

  const take = ({ id, html }) => {
    const part = document.getElementById(id);
    if (!part) return;
    if (isBusy(part)) {
      late.set(id, html);
      return;
    }
    late.delete(id);
    replace(part, html, after);
  };
  const close = () => {
    clearTimeout(pause);
    source?.close();
  };
  // The stream does not say why it was refused; the page does: it leads to the form to sign in.
  const isSignedOut = async () => {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
    return answer.type === "opaqueredirect";
  };
  const wait = () => {
    close();
    pause = setTimeout(open, 1000 + Math.random() * 1000);
  };
  const open = () => {
    close();
    const query = new URLSearchParams({ page, seen: [...seen].map((pair) => pair.join(":")).join(",") });
    source = new EventSource(`${document.body.dataset.base}/live?${query}`);
    source.addEventListener("open", () => document.body.classList.remove("is-stale", "is-out"));
    source.addEventListener("fragment", (event) => {
      const part = JSON.parse(event.data);
      // What is here is no longer what the page came with: after a cut everything is sent again.
      seen.delete(part.id);
      take(part);
    });
    source.addEventListener("error", () => {
      document.body.classList.add("is-stale");
      const isRefused = source.readyState === EventSource.CLOSED;
      wait();
      if (!isRefused) return;
      isSignedOut().then((isOut) => {
        if (!isOut) return;
        // What was typed stays to be copied: the page is not left.
        close();
        document.body.classList.replace("is-stale", "is-out");
      }).catch(() => {});
    });
  };
  const finish = () => late.forEach((html, id) => take({ id, html }));
  document.addEventListener("focusout", () => setTimeout(finish));
  document.addEventListener("selectionchange", () => { if (late.size) setTimeout(finish, 300); });
  // A page that is not looked at needs no news.
  document.addEventListener("visibilitychange", () => {
    close();
    if (!document.hidden) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  open();
}
