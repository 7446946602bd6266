// Times relative to now; the instant itself is in the title, and shown where there is no script.
const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

export function relative(seconds) {
  const size = Math.abs(seconds);
  const [, unit, name] = STEPS.find(([limit]) => size < limit);
  const amount = `${Math.floor(size / unit)} ${name}`;
  return seconds < 0 ? `in ${amount}` : amount;
}

export function writeTimes(root = document) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(seconds) || time.dataset.kind === "exact") continue;
    const text = relative(Math.abs(seconds) < 1 ? 0 : seconds);
    time.textContent = time.dataset.kind === "ago" && seconds >= 0 ? `${text} ago` : text;
  }
}

export function startTimes() {
  writeTimes();
  setInterval(writeTimes, 1000);
}
