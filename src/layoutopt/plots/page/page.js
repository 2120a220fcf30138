"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];

  const value = (row, column) => {
    const cell = row.cells[column];
    const raw = cell.dataset.value;
    if (raw === undefined) return cell.textContent;
    return raw === "" ? null : Number(raw);
  };

  // What has no value stands last in both directions; equal rows keep their order.
  const compare = (a, b, way) => {
    if (a === b) return 0;
    if (a === null || a === "") return 1;
    if (b === null || b === "") return -1;
    return way * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };

  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const way = down ? -1 : 1;
      body.append(...rows.map((row) => [value(row, column), row])
        .sort((a, b) => compare(a[0], b[0], way)).map((pair) => pair[1]));
    });
  });

  const shown = document.getElementById("shown");
  document.getElementById("search").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = `${count} of ${rows.length} rows`;
  });
})();
