"""Style and script of the report page, kept in the page itself so that one file is all there is."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d1f21; --soft: #5d646b; --line: #dfe3e7; --wash: #f5f7f9;
  --good: #1b6e3c; --bad: #a52a2a; --link: #0b5fa5; --mark: #fff4cf; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --ink: #e6e8ea; --soft: #a0a7ae; --line: #31373d;
  --wash: #1d2226; --good: #6fce93; --bad: #ff8f85; --link: #7cc0ff; --mark: #3a3420; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; } a { color: var(--link); }
p { margin: .4rem 0; max-width: 46rem; } .soft, figcaption, .notes { color: var(--soft); font-size: .86rem; }
.verdict { font-size: 1.15rem; } .notes { padding-left: 1.1rem; margin: .5rem 0; max-width: 52rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0; font-size: .9rem; }
.bars { display: grid; grid-template-columns: max-content minmax(4rem, 22rem) auto; gap: .35rem .7rem;
  align-items: center; margin: 1rem 0; } .bars .bar { height: 1.05rem; border-radius: 2px; min-width: 2px; }
.bars .name { text-align: right; } .bars .value { font-size: .86rem; } .bars .best { font-weight: 700; }
.bars .soft { font-weight: 400; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; margin: .4rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .26rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
td.text, th.text { text-align: left; } thead th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort="ascending"] button::after { content: " ▲"; font-size: .7em; }
th[aria-sort="descending"] button::after { content: " ▼"; font-size: .7em; }
tr.block th { padding-top: .9rem; text-align: left; border-bottom: 1px solid var(--ink); }
tr.published td { color: var(--soft); font-style: italic; } td.best { font-weight: 700; }
td small { color: var(--soft); font-weight: 400; }
td small.good { color: var(--good); } td small.bad { color: var(--bad); }
.dot { display: inline-block; width: .65em; height: .65em; border-radius: 50%; margin-right: .45em; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; background: #fff; padding: .4rem; border-radius: 6px;
  border: 1px solid var(--line); display: block; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.2rem;
  align-items: start; } .gallery .wide { grid-column: 1 / -1; }
details { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; } summary span { font-weight: 400; color: var(--soft); font-size: .88rem; }
details details { background: var(--wash); } details details th:first-child, details details td:first-child {
  background: var(--wash); }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr)); gap: .8rem; }
.mistake { display: flex; gap: .7rem; border: 1px solid var(--line); border-radius: 6px; padding: .5rem;
  font-size: .8rem; min-width: 0; } .mistake img { width: 84px; height: 84px; border-radius: 4px; flex: none; }
.mistake div { min-width: 0; overflow-wrap: anywhere; }
.mistake ol { margin: .1rem 0 .3rem; padding: 0; list-style: none; }
.mistake .true { background: var(--mark); border-radius: 2px; } .mistake strong { display: block; }
code { font-size: .85em; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: .8rem .7rem 3rem; } .verdict { font-size: 1.05rem; }
  .bars { grid-template-columns: max-content 1fr; gap: .1rem .6rem; } .bars .value { grid-column: 2; }
  th, td { padding: .26rem .4rem; } }
@media print { body { max-width: none; } details > * { display: block; } nav { display: none; } }
"""

# Sorts the rows of a block by a column; a second click turns the order round. Empty cells stay last.
SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const heads = table.tHead.querySelectorAll("th");
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
    const key = row => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent ?? "";
    for (const body of table.tBodies) {
      [...body.rows].filter(row => !row.classList.contains("block")).sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return turn * order;
      }).forEach(row => body.append(row));
    }
  }));
});
"""
