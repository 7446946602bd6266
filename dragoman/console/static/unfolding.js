// Which event is unfolded is in the address: a link to it shows it unfolded.
function unfold() {
  const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!part?.matches("details")) return;
  part.open = true;
  part.scrollIntoView({ block: "nearest" });
}

export function startUnfolding() {
  document.addEventListener("click", (event) => {
    const part = event.target.closest(".events summary")?.parentElement;
    if (!part?.id) return;
    // It is about to become the other.
    if (!part.open) history.replaceState(null, "", `#${part.id}`);
    else if (location.hash === `#${part.id}`) history.replaceState(null, "", location.pathname + location.search);
  });
  addEventListener("hashchange", unfold);
  unfold();
}
