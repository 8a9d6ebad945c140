"use strict";

// Sorts the rows by a column; a second click reverses the order. Empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.querySelectorAll("th")];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
    const key = row => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent ?? "";
    for (const body of table.tBodies) {
      [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return turn * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
      }).forEach(row => body.append(row));
    }
  }));
}

// Marks tables that are wider than the page. Closed sections are skipped: measuring would lay out every run.
function measureBoxes(part) {
  for (const box of part.querySelectorAll(".scroll")) {
    if (!box.closest("details:not([open])")) box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  }
}
addEventListener("resize", () => measureBoxes(document));
document.addEventListener("toggle", event => { if (event.target.open) measureBoxes(event.target); }, true);
measureBoxes(document);

// A click enlarges a figure, which scrolls if the screen is smaller.
const dialog = document.getElementById("enlarged");
document.querySelectorAll("button.zoom").forEach(button => button.addEventListener("click", () => {
  const large = button.querySelector("svg").cloneNode(true);
  large.style.minWidth = button.closest("figure").style.width;
  dialog.querySelector("div").replaceChildren(large);
  dialog.showModal();
}));
dialog?.addEventListener("click", event => {
  if (event.target === dialog || event.target.classList.contains("close")) dialog.close();
});

// Filters hide rows of the list of runs and their sections.
const filters = [...document.querySelectorAll("[data-filter]")];
const rows = [...document.querySelectorAll("table.runs tbody tr")];
function filterRuns() {
  const wanted = filters.filter(field => field.value).map(field => [field.dataset.filter, field.value.toLowerCase()]);
  let shown = 0;
  for (const row of rows) {
    const fits = wanted.every(([key, value]) => key === "text"
      ? row.dataset.text.toLowerCase().includes(value) : row.dataset[key].toLowerCase() === value);
    row.hidden = !fits;
    document.getElementById(row.dataset.run).hidden = !fits;
    shown += fits;
  }
  const output = document.querySelector(".filters output");
  output.textContent = `${shown} of ${rows.length} runs`;
}
filters.forEach(field => field.addEventListener("input", filterRuns));
document.querySelector(".filters")?.addEventListener("submit", event => event.preventDefault());
if (rows.length) filterRuns();

// Each thumbnail is stored once and decoded when a run that shows it is opened.
const store = document.getElementById("thumbnails");
const thumbnails = store ? JSON.parse(store.textContent) : {};
document.addEventListener("toggle", event => {
  event.target.querySelectorAll?.("img[data-thumbnail]").forEach(image => {
    image.src ||= thumbnails[image.dataset.thumbnail];
  });
}, true);

// A link to a run opens it.
function openLinked() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches?.("details.run")) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openLinked);
openLinked();
