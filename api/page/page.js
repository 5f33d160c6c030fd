"use strict";
const CLASSES = { P0: "interactive", P1: "agent", P2: "batch", P3: "background" };
const KEPT_S = 300;  // of the moving pictures
const RETRY_MS = 2000;
const byId = (id) => document.getElementById(id);
const key = () => sessionStorage.getItem("headway-key");
const known = Object.create(null);  // by pool: each worker as it was seen last, by id
const past = Object.create(null);  // by pool: [{ at, waiting }], oldest first

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s < 0.9995) return `${Math.round(1000 * s)} ms`;
  if (s < 29.95) return `${Number.isInteger(s) ? s : s.toFixed(s < 9.995 ? 2 : 1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
}

const share = (x) => (x === null || x === undefined ? "–" : `${Math.round(100 * x)} %`);
const amount = (n) => n.toLocaleString("en", { maximumFractionDigits: n < 100 ? 1 : 0 });
const gpuTime = (s) => (s < 360 ? `${amount(s)} GPU-s` : `${amount(s / 3600)} GPU-h`);
const money = (usd) => `$${usd.toLocaleString("en", { maximumFractionDigits: usd < 1 ? 4 : 2 })}`;
const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

function table(caption, columns, rows) {
  const heads = columns.map(([name, kind]) => make("th", { scope: "col", class: kind || "" }, name));
  return make("table", {}, make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell, n) => n === 0
      ? make("th", { scope: "row", class: columns[0][1] || "" }, cell) : make("td", { class: columns[n][1] || "" }, cell))))));
}

// The waiting jobs of the last minutes, one class upon another, P0 at the bottom.
function picture(pool) {
  const points = past[pool.pool], now = points[points.length - 1].at, span = Math.max(60, now - points[0].at);
  const most = Math.max(4, ...points.map((point) => sum(point.waiting)));
  const label = `${sum(pool.waiting)} jobs wait now, at most ${most} in the last ${Math.ceil(span / 60)} minutes`;
  let below = points.map(() => 0), paths = "";
  for (const name of Object.keys(CLASSES)) {
    const above = points.map((point, n) => below[n] + point.waiting[name]);
    const x = (n) => (100 * (1 - (now - points[n].at) / span)).toFixed(2), y = (jobs) => (100 - (92 * jobs) / most).toFixed(2);
    const up = above.map((jobs, n) => `${x(n)},${y(jobs)}`), down = below.map((jobs, n) => `${x(n)},${y(jobs)}`).reverse();
    paths += `<path class="${name.toLowerCase()}" d="M${[...up, ...down].join("L")}Z"></path>`;
    below = above;
  }
  const node = make("div", { class: "picture" });
  node.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="${label}">${paths}</svg>`;  // numbers only
  node.append(make("span", { class: "most" }, `${amount(most)} jobs`), make("span", { class: "since" }, `last ${seconds(Math.round(span))}`));
  return node;
}

function queue(pool) {
  const rows = Object.entries(CLASSES).map(([name, meaning]) => [
    make("span", {}, make("i", { class: `mark ${name.toLowerCase()}`, "aria-hidden": "true" }), name, make("span", { class: "meaning" }, ` ${meaning}`)),
    amount(pool.waiting[name]), pool.waiting[name] ? seconds(pool.waiting_s[name]) : "–", seconds(pool.oldest_s[name]),
  ]);
  const columns = [["Class"], ["Waiting", "number"], ["Predicted", "number"], ["Oldest", "number"]];
  return make("div", { class: "queue" }, picture(pool), make("div", { class: "scroll" }, table("Waiting jobs by class", columns, rows)));
}

function bar(name, of, text, scarce) {
  const track = make("div", { class: scarce && of > 0.97 ? "bar full" : "bar", "aria-hidden": "true" }, make("i"));
  track.firstChild.style.width = `${Math.min(100, 100 * of)}%`;
  return [make("dt", {}, name), track, make("dd", {}, text)];
}

// Those that are there, and those that went without having been told to, for as long as the pictures go back.
function present(pool, at) {
  const seen = (known[pool.pool] ||= new Map());
  for (const worker of pool.workers) seen.set(worker.id, { at, worker });
  for (const [id, last] of seen) if (last.worker.state === "draining" || last.at < at - KEPT_S) seen.delete(id);
  const gone = [...seen.values()].filter((last) => last.at < at);
  return [...pool.workers, ...gone.map(({ worker, at: since }) => ({ ...worker, state: `gone ${seconds(Math.round(at - since))}`, busy_slots: 0, busy_share: 0, jobs: {}, gone: true }))];
}

function tile(worker) {
  const broken = worker.breaker !== "closed", state = broken ? `${worker.state}, breaker ${worker.breaker}` : worker.state;
  const edge = worker.gone || worker.state === "unavailable" || worker.breaker === "open" ? "off" : worker.state === "ready" && !broken ? "" : "warn";
  const held = Object.entries(worker.jobs).map(([name, n]) => `${n} ${name}`).join(", ");
  return make("li", { class: `tile ${edge}` },
    make("b", {}, worker.id), " ", make("span", { class: worker.gone ? "bad" : broken ? worker.breaker : worker.state }, state),
    make("dl", {}, ...bar("slots", worker.busy_share, `${worker.busy_slots} of ${worker.slots}`),
      ...(worker.kv_used_share === null ? [] : bar("KV", worker.kv_used_share, share(worker.kv_used_share), true)),
      ...(worker.prefix_hit_share === null ? [] : bar("prefix hits", worker.prefix_hit_share, share(worker.prefix_hit_share)))),
    make("p", { class: "soft" }, [held || "no jobs", worker.tpot_s === null ? "" : `${seconds(worker.tpot_s)} a token`].filter(Boolean).join(" · ")));
}

function hour(pool) {
  const part = (of, name) => (of[name] ? `${seconds(of[name].p50)} / ${seconds(of[name].p95)} / ${seconds(of[name].p99)}` : "–");
  const rows = Object.entries(pool.hour).map(([name, of]) => [name, amount(of.jobs), part(of, "wait_s"), part(of, "ttft_s"), part(of, "tpot_s"), part(of, "e2e_s")]);
  if (!rows.length) return make("p", { class: "soft" }, "No job has been claimed in the last hour.");
  const columns = [["Wait", "number"], ["First token", "number"], ["Each token", "number wide"], ["To the end", "number wide"]];
  return make("div", { class: "scroll" }, table("Percentiles of the last hour by class: median, 95th, 99th", [["Class"], ["Answered", "number wide"], ...columns], rows));
}

function balance(pool) {
  const detail = pool.balance_detail;
  if (detail.why) return make("p", { class: "why" }, detail.uneven ? `Uneven: ${detail.why}` : detail.why);
  if (!detail.busy || pool.workers.length < 2) return null;
  return make("p", { class: "why even" }, `Even: the busiest worker has ${detail.busy.max_over_mean.toFixed(2)} times the mean load`);
}

function card(pool, at) {
  const workers = present(pool, at);
  const facts = [`${pool.running} running`, `${pool.delayed} held or retrying`, `${pool.dead} dead letters`];
  if (pool.prefix_hit_share !== null) facts.push(`${share(pool.prefix_hit_share)} of prompt tokens from cache`);
  for (const name of ["paused", "draining"]) if (pool[name]) facts.unshift(name);
  return make("article", { "aria-label": `pool ${pool.pool}` },
    make("div", { class: "title" }, make("h2", {}, pool.pool), make("span", { class: "soft" }, pool.embedded ? "embedded SmolLM2-135M" : pool.engines.join(", "))),
    make("p", { class: "soft" }, facts.join(" · ")), balance(pool),
    make("h3", {}, "Waiting"), queue(pool),
    make("h3", {}, "Workers"), pool.workers.length ? null : make("p", { class: "bad" }, "No worker serves this pool."), make("ul", { class: "tiles" }, ...workers.map(tile)),
    make("h3", {}, "Last hour: median / 95th / 99th percentile"), hour(pool));
}

function sums(overview) {
  const workers = new Map(overview.pools.flatMap((pool) => pool.workers).map((worker) => [worker.id, worker]));
  const ready = [...workers.values()].filter((worker) => worker.state === "ready" && worker.breaker !== "open");
  const slots = ready.reduce((n, worker) => n + worker.slots, 0), busy = ready.reduce((n, worker) => n + worker.busy_slots, 0);
  const waiting = overview.pools.reduce((n, pool) => n + sum(pool.waiting), 0), oldest = (name) => Math.max(...overview.pools.map((pool) => pool.oldest_s[name] || 0));
  const urgent = Object.keys(CLASSES).find((name) => oldest(name) > 0);
  const first = overview.pools.filter((pool) => pool.hour.P0 && pool.hour.P0.ttft_s).map((pool) => pool.hour.P0.ttft_s);
  const worst = (name) => Math.max(...first.map((of) => of[name]));
  const loads = overview.pools.map((pool) => pool.balance_detail.busy).filter(Boolean).map((load) => load.max_over_mean);
  const uneven = overview.pools.filter((pool) => pool.balance_detail.uneven);
  const add = (name, value, note, bad) => make("div", bad ? { class: "bad" } : {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note)));
  const spent = overview.cost.actual;
  byId("sums").replaceChildren(
    add("Workers ready", `${ready.length} of ${workers.size}`, overview.pools.length === 1 ? "1 pool" : `${overview.pools.length} pools`, ready.length < workers.size),
    add("Slots busy", slots ? share(busy / slots) : "–", `${busy} of ${slots}`),
    add("Jobs waiting", amount(waiting), urgent ? `oldest ${urgent} ${seconds(oldest(urgent))}` : "nobody waits"),
    add("P0 first token", first.length ? seconds(worst("p50")) : "–", first.length ? `99th percentile ${seconds(worst("p99"))}` : "no stream in the last hour"),
    add("Balance", loads.length ? Math.max(...loads).toFixed(2) : "–", uneven.length ? `uneven: ${uneven.map((pool) => pool.pool).join(", ")}` : "busiest worker over the mean", uneven.length > 0),
    add("Cost so far", spent.usd === null ? gpuTime(spent.gpu_seconds) : money(spent.usd), saved(overview.cost)));
  return `${ready.length} of ${workers.size} workers ready`;
}

function saved(cost) {
  const other = cost.all_large || cost.no_prefix_reuse, what = cost.all_large ? "all on the large pool, as loaded so far" : "without prefix reuse";
  if (!other || !cost.actual.gpu_seconds) return "GPU time of all jobs";
  const [there, here] = cost.actual.usd ? [other.usd, cost.actual.usd] : [other.gpu_seconds, cost.actual.gpu_seconds];
  return there > here ? `${share(1 - here / there)} less than ${what}` : `no less than ${what}`;
}

function costs(cost) {
  const names = { actual: "As it was", no_prefix_reuse: "Without prefix reuse", all_large: "All on the large pools" };
  const rows = Object.entries(names).filter(([name]) => cost[name]).map(([name, text]) => [text, amount(cost[name].gpu_seconds), cost[name].usd === null ? "no price set" : money(cost[name].usd)]);
  return table("Cost so far, and what it would have been", [["All jobs since the beginning"], ["GPU-seconds", "number wide"], ["Money", "number"]], rows);
}

function jobs(list) {
  if (!list.length) return make("p", { class: "soft" }, "None.");
  const rows = list.map((job) => {
    const button = make("button", { type: "button", title: job.job_id, "aria-label": `Story of ${job.job_id}` }, `${job.job_id.slice(4, 14)}…`);
    button.addEventListener("click", () => tell(job.job_id));
    return [button, job.service_class, seconds(job.wait_s), seconds(job.first_s), new Date(1000 * job.ended).toLocaleTimeString()];
  });
  return table("Jobs", [["Story of"], ["Class"], ["Waited", "number wide"], ["First token", "number"], ["Ended", "number"]], rows);
}

// Rebuilt only when they change, so that a focused button stays.
function keep(id, data, build) {
  const text = JSON.stringify(data);
  if (byId(id).dataset.of === text) return;
  byId(id).dataset.of = text;
  byId(id).replaceChildren(build());
}

function show(overview) {
  for (const pool of overview.pools) {
    const points = (past[pool.pool] ||= []);
    points.push({ at: overview.at, waiting: pool.waiting });
    while (points[0].at < overview.at - KEPT_S) points.shift();
  }
  const embedded = overview.pools.filter((pool) => pool.embedded).map((pool) => pool.pool);
  byId("embedded").hidden = embedded.length === 0;
  keep("embedded", embedded, () => make("span", {}, `${embedded.join(" and ")} ${embedded.length > 1 ? "run" : "runs"} the embedded ` +
    "SmolLM2-135M-Instruct, a small model that answers on any CPU. Name a real engine in ", make("code", {}, "headway.yaml"), " to replace it."));
  say(sums(overview));
  byId("pools").replaceChildren(...overview.pools.map((pool) => card(pool, overview.at)));
  keep("slow", overview.recent.slow, () => jobs(overview.recent.slow));
  keep("failed", overview.recent.failed, () => jobs(overview.recent.failed));
  keep("cost", overview.cost, () => costs(overview.cost));
}

async function tell(id) {
  byId("story-title").textContent = id;
  byId("story-body").replaceChildren(make("p", { class: "soft" }, "Loading"));
  byId("story").showModal();
  const response = await fetch(`/v1/jobs/${id}`, { headers: authorization() });
  const job = await response.json();
  if (!response.ok) return byId("story-body").replaceChildren(make("p", {}, response.status === 404
    ? "This job's record is no longer kept, or it is another tenant's." : job.error.message));
  const start = job.story.length ? job.story[0].at : 0;
  const rows = job.story.map((each) => [`+${seconds(each.at - start)}`, each.event.replaceAll("_", " "), each.detail || ""]);
  byId("story-body").replaceChildren(
    make("p", { class: "soft" }, `${job.status} · ${job.class} · ${job.pool}${job.worker ? ` · ${job.worker}` : ""}`),
    make("div", { class: "scroll" }, table("What happened, in order", [["When", "number"], ["What"], ["Detail"]], rows)));
}

function say(text, bad) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;  // a screen reader hears changes only
  state.className = bad ? "bad" : "";
}

const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function hear(event) {
  const data = JSON.parse(event.replace(/^(event|id):.*\n/gm, "").replace(/^data: /gm, ""));
  if (data.error) say(`The queue does not answer: ${data.error.message}`, true);
  else show(data);
}

// By fetch, for an EventSource cannot send a key.
async function follow(signal) {
  const response = await fetch("/v1/overview/events", { headers: authorization(), signal });
  const refused = response.status === 401 || response.status === 403;
  byId("login").classList.toggle("shown", refused);
  byId("all").hidden = refused;
  if (refused && !key()) return say("An API key is needed");
  if (!response.ok) return say(response.status === 401 ? "This API key is not known here" : (await response.json()).error.message, true);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", part; !(part = await reader.read()).done;) {
    const events = (text + part.value).split("\n\n");
    text = events.pop();
    events.filter((event) => event.startsWith("event:")).forEach(hear);
  }
}

let stop = new AbortController();
async function run() {
  stop.abort();
  const mine = (stop = new AbortController());
  while (!mine.signal.aborted && !document.hidden) {
    try {
      await follow(mine.signal);
    } catch (error) {
      if (!mine.signal.aborted) say("The API does not answer; trying again", true);
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("headway-key", byId("key").value);
  run();
});
document.addEventListener("visibilitychange", () => (document.hidden ? stop.abort() : run()));
run();
