// The page: which list is shown, and when it is read again.

import { ApiError, events, read } from './api.js';
import { isSignedOut, openRequest, resize, showKeys, showLease, showSite, showUnit, signIn, tell } from './dialogs.js';
import { List, element } from './list.js';
import { learn, may } from './rights.js';
import { plural } from './text.js';
import { POOL_VIEWS, VIEWS, WINDOWS } from './views.js';

const $ = id => document.getElementById(id);
const TITLES = { pools: 'Pools', queue: 'Queue', leases: 'Leases', semaphores: 'Semaphores', gangs: 'Gangs', sites: 'Sites', history: 'History' };
// The least time between two answers, and how many times longer than an answer took.
const PAUSE = 400;
const SPARE = 4;
// Lists are read again after this time even if no event came.
const ANYWAY = 15000;
const RECONNECT = 2000;

let view = null;
let list = null;
let place = null;
let due = null;
let next = 0;
let generation = 0;

// Which list

function parse() {
  const [kind, name, part] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  if (kind === 'pool' && name) return { tab: 'pools', pool: name, part: part in POOL_VIEWS ? part : 'units' };
  return { tab: kind in VIEWS ? kind : 'pools' };
}

function show() {
  const route = location.hash.replace(/^#\/?/, '');
  const asked = route.startsWith('request/');
  if (asked) openRequest(decodeURIComponent(route.slice(8))).catch(failed);
  const to = asked ? { tab: 'queue' } : parse();
  if (JSON.stringify(to) === JSON.stringify(place)) return;
  place = to;
  generation += 1;
  view = to.pool ? POOL_VIEWS[to.part](to.pool) : VIEWS[to.tab]('');
  list?.end();
  $('filter').value = '';
  list = new List({
    label: to.pool ? `${to.part} of pool ${to.pool}` : TITLES[to.tab],
    columns: view.columns, key: view.key, tone: view.tone, empty: '', open: view.open && (row => open(view.open(row), row)),
    atEnd: () => extend(false),
  });
  list.changed = () => list.sorting && extend(true);
  $('main').replaceChildren(list.element);
  document.title = `${to.pool ?? TITLES[to.tab]} · kofm`;
  drawTabs();
  drawCrumb();
  drawCount();
  refresh(true);
}

function open(where, row) {
  if (where.unit) showUnit(where.unit);
  else if (where.site) showSite(where.site, where.state);
  else if (where.startsWith('pool/')) location.hash = `#/${where}`;
  else if (where.startsWith('lease/')) showLease(row);
  else openRequest(row.id).catch(failed);
}

function drawTabs() {
  const tabs = Object.entries(TITLES).map(([tab, title]) => element('a', { href: `#/${tab}`, 'aria-current': tab === place.tab ? 'page' : null }, title));
  $('tabs').replaceChildren(...tabs);
}

function drawCrumb() {
  $('crumb').hidden = !place.pool;
  $('actions').replaceChildren();
  if (!place.pool) return;
  const base = `#/pool/${encodeURIComponent(place.pool)}`;
  const parts = Object.keys(POOL_VIEWS).map(part => element('a', { href: `${base}/${part}`, 'aria-current': part === place.part ? 'page' : null }, part[0].toUpperCase() + part.slice(1)));
  $('crumb').replaceChildren(element('strong', {}, place.pool), ...parts, element('span', { class: 'dim', id: 'summary' }));
  if (view.windows) {
    const pick = name => {
      view.source.window = name;
      list.draw();
      drawCrumb();
    };
    $('actions').append(...Object.keys(WINDOWS).map(name => element('button', { type: 'button', 'aria-pressed': String(name === view.source.window), click: () => pick(name) }, name)));
  }
  if (view.source.pool) summarise(view.source.pool);
}

function summarise(pool) {
  const summary = $('summary');
  if (!summary) return;
  const out = pool.quarantined ? `, ${pool.quarantined} quarantined` : '';
  summary.textContent = `${pool.free} of ${pool.units} free, ${pool.held} held${out}, ${pool.waiting} waiting · ${pool.protocol} · on expiry: ${pool.on_expiry}`;
  if (!$('resize') && may('admin', [pool.name])) {
    $('actions').append(element('button', { id: 'resize', type: 'button', click: () => resize(view.source.pool) }, 'Resize…'));
  }
}

function drawCount() {
  const { rows, more, missing, received } = view.source;
  const some = list.filter ? `${list.rows.length.toLocaleString('en')} of ` : '';
  const text = !received ? 'Reading…' : `${some}${more ? 'first ' : ''}${plural(rows.length, view.noun)}`;
  const silent = missing.length ? `; no answer from ${missing.join(', ')}` : '';
  if ($('count').textContent !== text + silent) $('count').textContent = text + silent;
}

// Reading again

function soon() {
  due ??= setTimeout(() => refresh(false), Math.max(60, next - performance.now()));
}

async function refresh(full) {
  clearTimeout(due);
  due = null;
  if (document.hidden) return;
  const [mine, shown, began] = [generation, view, performance.now()];
  try {
    await Promise.all([shown.source.refresh(full), health()]);
    if (mine !== generation) return;
    list.empty = shown.empty;
    list.set(shown.source.rows);
    if (shown.source.pool) summarise(shown.source.pool);
    drawCount();
  } catch (error) {
    if (mine === generation) failed(error);
  } finally {
    next = performance.now() + Math.max(PAUSE, SPARE * (performance.now() - began));
  }
}

async function extend(all) {
  const [mine, { source }] = [generation, view];
  if (!(await source.extend?.(all).catch(failed)) || mine !== generation) return;
  list.set(source.rows);
  drawCount();
}

function failed(error) {
  if (isSignedOut(error)) signIn(error.message);
  else if (error instanceof ApiError) tell(error.message);
  else throw error;
}

let told = '';
async function health() {
  const { value } = await read('/v1/health');
  const text = JSON.stringify(value);
  if (text === told) return;
  told = text;
  $('where').textContent = `site ${value.site}, epoch ${value.epoch}`;
  const problems = value.problems.map(it => element('div', { class: 'problem' }, element('b', {}, it.message), element('br'), it.action));
  $('health').replaceChildren(...(problems.length ? problems : [element('span', { class: 'fine' }, 'Healthy: the site reports no problem.')]));
}

function live(text) {
  if ($('live').textContent !== text) $('live').textContent = text;
}

async function follow() {
  for (;;) {
    try {
      for await (const event of events()) {
        live('Live');
        if (!event || event.missed || view.on(event)) soon();
      }
      live('Connection lost');
    } catch (error) {
      live(isSignedOut(error) ? 'Token needed' : 'Connection lost');
    }
    await new Promise(resolve => setTimeout(resolve, RECONNECT));
  }
}

// Keys

function back() {
  if ($('filter').value) {
    $('filter').value = '';
    filter();
    list.focus();
  } else if (place.pool) {
    location.hash = '#/pools';
  }
}

function filter() {
  list.filter = $('filter').value.trim();
  list.body.scrollTop = 0;
  list.arrange();
  drawCount();
  if (list.filter) extend(true);
}

document.addEventListener('keydown', event => {
  const typing = ['INPUT', 'TEXTAREA'].includes(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || $('dialog').open) return;
  if (event.key === 'Escape') back();
  else if (event.key === 'Enter' && event.target === $('filter')) list.focus();
  else if (typing) return;
  else if (event.key === '/') $('filter').focus();
  else if (event.key === '?') showKeys();
  else if (/^[1-7]$/.test(event.key)) location.hash = `#/${Object.keys(TITLES)[event.key - 1]}`;
  else if (event.key === 'ArrowDown' && !list.body.contains(document.activeElement)) list.focus();
  else return;
  event.preventDefault();
});

$('filter').addEventListener('input', filter);
$('sign').addEventListener('click', () => signIn());
$('help').addEventListener('click', showKeys);
document.querySelector('.skip').addEventListener('click', event => {
  event.preventDefault();
  list.focus();
});
window.addEventListener('hashchange', show);
document.addEventListener('changed', () => refresh(true));
document.addEventListener('visibilitychange', () => refresh(true));
document.addEventListener('signed', () => {
  told = '';
  begin();
});
$('dialog').addEventListener('close', () => {
  if (location.hash.startsWith('#/request/')) location.hash = '#/queue';
  list?.focus();
});

async function begin() {
  // Without rights to anything the buttons are missing, and the list says what the token lacks.
  await learn().catch(failed);
  place = null;
  show();
}

begin().then(follow);
setInterval(() => { if (!document.hidden) list?.draw(); }, 1000);
setInterval(() => refresh(true), ANYWAY);
