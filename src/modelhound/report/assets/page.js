(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  // Light and dark: as the system says, unless told.
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const themes = [["", "as the system"], ["light", "light"], ["dark", "dark"]];

  function beginTheme() {
    const button = document.getElementById("theme");
    const say = () => {
      const name = themes.find(([key]) => key === (root.dataset.theme || ""))[1];
      button.textContent = `Theme: ${name}`;
      root.dataset.shown = isDark() ? "dark" : "light";
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      const place = themes.findIndex(([key]) => key === (root.dataset.theme || ""));
      const next = themes[(place + 1) % themes.length][0];
      if (next) root.dataset.theme = next; else delete root.dataset.theme;
      try { localStorage.setItem("modelhound-theme", next); } catch { /* see early.js */ }
      say();
      redrawAll();
    });
    systemDark.addEventListener("change", () => { say(); redrawAll(); });
    say();
  }

  // Tables sort by a press on a column, filter by words, and show their first rows until asked for all.
  function beginTable(box, state = {}) {
    const table = box.querySelector("table");
    const body = table.tBodies[0];
    const heads = all("thead th", table);
    const late = box.querySelector("script.late");
    const rows = [...Array.from(body.rows, (element) => ({ element })), ...(late ? JSON.parse(late.textContent).map((cells) => ({ cells })) : [])];
    const input = box.querySelector("input");
    const count = box.querySelector(".count");
    const more = box.querySelector(".more");
    const textOf = (row) => (row.text ??= (row.cells ? row.cells.map(([text]) => text).join("\n") : row.element.textContent).toLowerCase());
    const first = Number(box.dataset.shown) || rows.length;
    const atOnce = 1000; // more would take seconds to lay out
    let sorted = state.sorted ?? null;
    let shown = state.shown ?? first;

    const key = (row, place) => {
      if (row.cells) return row.cells[place].at(-1);
      const cell = row.element.cells[place];
      if (!cell) return "";
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const elementOf = (row) => { // of rows that came as data, made when they are seen
      row.element ??= make("tr", {}, ...row.cells.map(([text, value], place) => {
        const isNumber = heads[place].classList.contains("n");
        const cell = make(place ? "td" : "th", { className: isNumber ? "n" : text.length > 44 ? "w" : place && text.length > 24 ? "" : "k" }, text);
        if (!place) cell.scope = "row";
        if (value !== undefined) cell.dataset.v = value;
        return cell;
      }));
      return row.element;
    };
    function arrange() {
      const order = rows.map((row, place) => ({ row, place }));
      if (sorted) {
        const { column, down } = sorted;
        const keys = rows.map((row) => key(row, column));
        const compare = (a, b) => {
          const emptyA = a === "" || a === "–", emptyB = b === "" || b === "–"; // what is not known comes last
          if (emptyA || emptyB) return emptyA - emptyB;
          const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
          return down ? -less : less;
        };
        order.sort((a, b) => compare(keys[a.place], keys[b.place]) || a.place - b.place);
      }
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fitting = order.filter(({ row }) => words.every((word) => textOf(row).includes(word)));
      const kept = fitting.length;
      body.replaceChildren(...fitting.slice(0, shown).map(({ row }) => elementOf(row)));
      const visible = Math.min(kept, shown);
      count.textContent = words.length ? `${kept} of ${rows.length} rows fit` : visible < kept ? `${visible} of ${kept} rows shown` : `${kept} rows`;
      more.hidden = kept <= first;
      more.textContent = visible === kept ? `Show the first ${first} only` : kept - shown <= atOnce ? `Show all ${kept} rows` : `Show ${atOnce} more rows`;
      heads.forEach((head, place) => {
        if (sorted && sorted.column === place) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      Object.assign(state, { sorted, shown, kept, filter: input.value });
    }
    heads.forEach((head, place) => {
      const button = make("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const isNumber = head.classList.contains("n");
        const again = sorted && sorted.column === place;
        sorted = again && sorted.down !== isNumber ? null : { column: place, down: again ? !sorted.down : isNumber };
        arrange();
      });
    });
    input.value = state.filter ?? "";
    input.addEventListener("input", arrange);
    more.addEventListener("click", () => { shown = shown >= state.kept ? first : shown + atOnce; arrange(); });
    box.querySelector(".controls").hidden = rows.length < 10;
    if (rows.length < 2) heads.forEach((head) => { head.querySelector("button").disabled = true; });
    arrange();
    return state;
  }

  // Charts: drawn when they come near, drawn again when colours or room change.
  let charts = [];
  let configs = {};
  let colours = {};
  let drawn = new Map(); // figure -> { view, narrow, dark }
  let near = null;

  const unpacked = (rows) => { // many rows come as one list for each name
    if (Array.isArray(rows)) return rows;
    const columns = Object.entries(rows).map(([name, values]) => [name, Array.isArray(values) ? values : values.at.map((place) => values.of[place])]);
    return columns[0][1].map((_, place) => Object.fromEntries(columns.map(([name, values]) => [name, values[place]])));
  };
  const recolour = (value) => {
    if (Array.isArray(value)) return value.map(recolour);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, name === "datasets" ? each : recolour(each)]));
    }
    return typeof value === "string" && value[0] === "#" ? colours[value.toLowerCase()] ?? value : value;
  };
  // Panels have a width of their own: as many stand side by side as fit, and together they are as wide as the page.
  const panelWidth = (spec) => (typeof spec.spec?.width === "number" ? spec.spec.width : 0);
  function countColumns(spec, width) {
    const field = spec.facet?.field;
    const names = new Set((field ? spec.datasets.rows : []).map((row) => row[field]).filter((name) => name !== undefined && name !== null));
    const fitting = Math.max(1, Math.floor((width - 60) / 190));
    return Math.max(1, Math.min(spec.columns ?? 1, names.size, fitting));
  }
  function widened(spec, columns, more) {
    const wanted = Math.min(720, Math.max(120, panelWidth(spec) + Math.floor(more / columns)));
    return { ...spec, ...(spec.facet?.field ? { columns } : {}), spec: { ...spec.spec, width: wanted } };
  }
  const longestName = (value, rows) => { // of all that a legend may have to show
    if (!value || typeof value !== "object") return 0;
    const own = Array.isArray(value.domain) ? value.domain.map((name) => String(name).length) : [];
    for (const channel of ["color", "shape", "strokeDash"]) { // without a domain, the rows have the names
      const { field, type, scale } = value[channel] ?? {};
      if (field && type === "nominal" && !Array.isArray(scale?.domain)) for (const row of rows) own.push(String(row[field] ?? "").length);
    }
    const inner = Object.entries(value).map(([name, each]) => (name === "datasets" ? 0 : longestName(each, rows)));
    return own.concat(inner).reduce((most, each) => Math.max(most, each), 0);
  };
  const hasNames = (value) => Boolean(value) && typeof value === "object" && (value.y?.type === "nominal"
    || Object.entries(value).some(([name, each]) => name !== "datasets" && hasNames(each)));
  function themed(spec, { dark, width }) {
    const config = structuredClone(configs[dark ? "dark" : "light"]);
    const letters = longestName(spec, spec.datasets?.rows ?? []) || 18;
    if (width < 560) config.axis.labelLimit = Math.max(70, Math.round(width * 0.36));
    const room = width - (hasNames(spec) ? config.axis.labelLimit ?? 180 : 45); // legends begin where the axis does
    config.legend.columns = Math.max(1, Math.min(4, Math.floor(room / (30 + 6.4 * Math.min(letters, 38)))));
    if (width < 560) {
      config.legend.labelLimit = Math.round(width * 0.5);
      config.axis.labelFontSize = 10;
    }
    return { ...(dark ? recolour(spec) : spec), config };
  }
  const embed = (box, spec, renderer) => vegaEmbed(box, spec, { actions: false, renderer, ast: true, logLevel: 2, tooltip: { theme: "custom" } });
  async function embedPanels(box, spec, renderer, width) { // what stands beside the panels is known when they are drawn
    const columns = countColumns(spec, width);
    const first = await embed(box, widened(spec, columns, 0), renderer);
    const room = width - box.querySelector("svg, canvas").getBoundingClientRect().width - 1;
    first.finalize();
    return embed(box, widened(spec, columns, room), renderer);
  }
  async function draw(figure) {
    const place = Number(figure.dataset.chart);
    const box = figure.querySelector(".canvas");
    const width = box.clientWidth;
    if (!width || !charts[place]) return;
    const dark = isDark();
    const before = drawn.get(figure);
    const { spec } = charts[place];
    const fits = before && before.narrow === width < 560 && (!panelWidth(spec) || Math.abs(before.width - width) < 24);
    if (fits && before.dark === dark) return;
    drawn.set(figure, { ...before, dark, width, narrow: width < 560 });
    const num = Object.values(spec.datasets ?? {}).reduce((sum, rows) => sum + rows.length, 0);
    const shown = themed({ ...spec, background: "transparent" }, { dark, width });
    if (before?.view) box.style.minHeight = `${box.offsetHeight}px`;
    const renderer = num > 1500 ? "canvas" : "svg";
    const made = panelWidth(shown) ? await embedPanels(box, shown, renderer, width) : await embed(box, shown, renderer);
    before?.view?.finalize();
    drawn.set(figure, { view: made, dark, width, narrow: width < 560 });
    box.style.minHeight = "";
    figure.querySelector(".tools").hidden = false;
    figure.dataset.drawn = "yes";
  }
  const redrawAll = () => { for (const figure of drawn.keys()) draw(figure); };

  async function picture(place, format) {
    const { name, title, caption, spec } = charts[place];
    const wanted = { ...spec, title: { text: title, subtitle: caption } };
    if (spec.width === "container") { wanted.width = 640; delete wanted.autosize; }
    const holder = make("div");
    const made = await embed(holder, themed(wanted, { dark: false, width: 640 }), "svg");
    const href = format === "svg" ? `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await made.view.toSVG())}` : (await made.view.toCanvas(2)).toDataURL("image/png");
    make("a", { href, download: `${name}.${format}` }).click();
    made.finalize();
  }
  function showData(figure, button) {
    const open = figure.querySelector(".table");
    button.setAttribute("aria-expanded", String(!open));
    if (open) { open.remove(); return; }
    const { title, spec } = charts[Number(figure.dataset.chart)];
    const rows = spec.datasets.rows;
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const isNumber = (name) => rows.every((row) => row[name] === null || row[name] === undefined || typeof row[name] === "number");
    const text = (value) => value === null || value === undefined ? "–" : typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value);
    const cell = (row, name) => {
      const made = make("td", { className: isNumber(name) ? "n" : "" }, text(row[name]));
      if (typeof row[name] === "number") made.dataset.v = row[name];
      return made;
    };
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col", className: isNumber(name) ? "n" : "" }, name.replaceAll("_", " "))));
    const table = make("table", {}, make("caption", {}, `Data of: ${title}`), make("thead", {}, head), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...names.map((name) => cell(row, name))))));
    const scroll = make("div", { className: "scroll", tabIndex: 0 }, table);
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Data of: ${title}`);
    const controls = make("p", { className: "controls" }, make("label", {}, "Filter ", make("input", { type: "search" })), make("span", { className: "count" }));
    const box = make("div", { className: "table" }, controls, scroll, make("button", { type: "button", className: "more" }));
    box.dataset.shown = 12;
    figure.append(box);
    beginTable(box);
  }
  function beginCharts() {
    for (const { view } of drawn.values()) view?.finalize();
    drawn = new Map();
    near?.disconnect();
    const holder = document.getElementById("modelhound-chart-data");
    if (!holder) return;
    ({ charts, configs, colours } = JSON.parse(holder.textContent));
    for (const { spec } of charts) spec.datasets = Object.fromEntries(Object.entries(spec.datasets).map(([name, rows]) => [name, unpacked(rows)]));
    near = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
    }, { rootMargin: "500px" });
    for (const figure of all("figure[data-chart]")) {
      near.observe(figure);
      figure.querySelector(".waiting")?.remove();
      for (const button of all("[data-do]", figure)) {
        button.addEventListener("click", () => {
          if (button.dataset.do === "data") showData(figure, button);
          else picture(Number(figure.dataset.chart), button.dataset.do);
        });
      }
    }
    const later = window.requestIdleCallback ? (run) => requestIdleCallback(run, { timeout: 300 }) : (run) => setTimeout(run, 50);
    const rest = all("figure[data-chart]");
    const drawNext = () => { // so that all are there when the page is printed
      const figure = rest.shift();
      if (figure) draw(figure).finally(() => later(drawNext));
    };
    later(drawNext);
  }

  function beginCopying() {
    for (const button of all(".copy")) {
      const line = button.parentElement.querySelector("code");
      button.hidden = false;
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(line.textContent); button.textContent = "Copied"; } catch {
          getSelection().selectAllChildren(line); // then the keyboard copies it
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    }
  }

  function beginContents() {
    const links = new Map(all(".contents a").map((link) => [link.getAttribute("href").slice(1), link]));
    if (!links.size) return;
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const [name, link] of links) link.toggleAttribute("aria-current", false), name === entry.target.id && link.setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-10% 0px -75% 0px" });
    for (const part of all("section.part")) seen.observe(part);
  }

  const states = new Map(); // of tables, kept when a live page changes
  function begin() {
    for (const box of all("main .table")) {
      const name = box.querySelector("table").id;
      states.set(name, beginTable(box, states.get(name)));
    }
    for (const image of all(".gallery img")) {
      const judge = () => image.classList.toggle("tiny", image.naturalWidth > 0 && image.naturalWidth < 64);
      if (image.complete) judge(); else image.addEventListener("load", judge);
    }
    beginCharts();
    beginCopying();
    beginContents();
  }

  // A live page asks its own server, and nobody else, whether there is something new.
  async function follow(version) {
    const state = document.getElementById("live-state");
    const say = (text, ended) => { state.textContent = text; state.classList.toggle("ended", ended); };
    for (let misses = 0; misses < 3;) {
      await new Promise((wake) => setTimeout(wake, 1500));
      try {
        const now = await (await fetch("version", { cache: "no-store" })).json();
        misses = 0;
        if (!now.finished) say(now.progress || "live", false);
        if (now.version === version) continue;
        const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
        version = fresh.body.dataset.live;
        const heights = new Map(all("figure[data-chart]").map((figure) => [figure.querySelector("h3").textContent, figure.querySelector(".canvas").offsetHeight]));
        const busy = document.activeElement?.matches?.("input[type=search]") ? document.activeElement.getAttribute("aria-controls") : null;
        document.querySelector("main").replaceChildren(...fresh.querySelector("main").childNodes);
        const contents = document.querySelector(".contents");
        const newContents = fresh.querySelector(".contents");
        if (contents && newContents) contents.replaceWith(newContents);
        else if (newContents) document.querySelector(".layout").prepend(newContents);
        for (const figure of all("figure[data-chart]")) figure.querySelector(".canvas").style.minHeight = `${heights.get(figure.querySelector("h3").textContent) ?? 64}px`;
        document.title = fresh.title;
        begin();
        if (busy) document.querySelector(`input[aria-controls="${CSS.escape(busy)}"]`)?.focus();
        if (now.finished) return say("finished", true);
      } catch { misses += 1; }
    }
    say("ended: the page stays as it is", true);
  }

  beginTheme();
  begin();
  let resizing = 0;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redrawAll, 200); });
  addEventListener("toggle", (event) => { // what was folded had no width to be drawn in
    if (event.target.open) for (const figure of all("figure[data-chart]", event.target)) draw(figure);
  }, true);
  if (document.body.dataset.live) follow(document.body.dataset.live);
})();
