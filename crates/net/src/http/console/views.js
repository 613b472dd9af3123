// The lists: their columns, their rows, and which events concern them.

import { Events, OnePool, Paged, Pools, Whole } from './sources.js';
import { LEASE_STATE, SITE_STATE, blocker, clock, plural, span, units, want } from './text.js';
import { element } from './list.js';

const LEASES = ['granted', 'released', 'expired', 'held', 'quarantined', 'epoch'];
const QUEUE = ['queued', 'granted', 'cancelled', 'failed', 'epoch'];

const bar = (cell, row) => {
  cell.firstChild ?? cell.append(element('span', { class: 'bar', role: 'img' }, element('i'), element('i', { class: 'out' })));
  const [held, out] = cell.firstChild.children;
  held.style.width = `${100 * row.held / row.units}%`;
  out.style.width = `${100 * row.quarantined / row.units}%`;
  const label = `${row.held} of ${row.units} held`;
  if (cell.firstChild.getAttribute('aria-label') !== label) cell.firstChild.setAttribute('aria-label', label);
};

const poolColumns = [
  { name: 'Pool', text: row => row.name, width: 'minmax(8rem, 2fr)', main: true },
  { name: 'Use', text: () => '', sort: row => row.held / row.units, draw: bar, width: 'minmax(5rem, 1.5fr)' },
  { name: 'Free', text: row => row.free, num: true },
  { name: 'Held', text: row => row.held, num: true },
  { name: 'Quarantined', text: row => row.quarantined, num: true, width: '6rem' },
  { name: 'Waiting', text: row => row.waiting, num: true },
  { name: 'Units', text: row => row.units, num: true },
  { name: 'Protocol', text: row => row.protocol, width: 'minmax(6rem, 1fr)' },
];

// Time since the answer came: durations go on between two answers.
const since = source => performance.now() - source.received;

const queueColumns = source => [
  { name: 'Place', text: row => row.position ?? '', num: true, width: '3.5rem' },
  { name: 'Wants', text: row => want(row.want), width: 'minmax(6rem, 1.3fr)', main: true },
  { name: 'Owner', text: row => row.owner ?? '', width: 'minmax(5rem, 1.2fr)', main: true },
  { name: 'Waited', text: row => span(row.waited_ms + since(source)), sort: row => row.waited_ms, width: '6.5rem' },
  { name: 'Blocked by', text: row => [...new Set(row.blocked_by.map(blocker))].join('; '), width: 'minmax(8rem, 3fr)' },
  { name: 'Reason', text: row => row.reason ?? '', width: 'minmax(5rem, 1.2fr)' },
  { name: 'Site', text: row => row.site },
];

const left = (row, source) => Math.max(0, row.expires_in_ms - since(source));

const leaseColumns = source => [
  { name: 'Units', text: row => units(row.units), width: 'minmax(9rem, 2fr)', main: true },
  { name: 'Owner', text: row => row.owner ?? '', width: 'minmax(5rem, 1.2fr)', main: true },
  { name: 'Since', text: row => clock(Date.now() - row.held_ms - since(source)), sort: row => -row.held_ms, width: '6.5rem' },
  { name: 'Ends in', text: row => (row.state === 'live' ? span(left(row, source)) : LEASE_STATE[row.state] ?? row.state), sort: row => row.expires_in_ms, width: '7rem' },
  { name: 'Reason', text: row => row.reason ?? '', width: 'minmax(5rem, 1.2fr)' },
  { name: 'Fence', text: row => row.fence, num: true },
  { name: 'Site', text: row => row.site },
];

const state = row => {
  if (row.lease) return (LEASE_STATE[row.lease.state] ?? row.lease.state) + (row.quarantine ? ', then quarantined' : '');
  return row.quarantine ? 'quarantined' : 'not held';
};
const tone = row => ((row.quarantine || (row.lease && row.lease.state !== 'live')) ? 'warn' : row.lease ? '' : 'idle');

const unitColumns = source => [
  { name: 'Unit', text: row => row.unit, width: 'minmax(6rem, 1.2fr)', main: true },
  { name: 'State', text: state, width: 'minmax(6rem, 1.2fr)', main: true },
  { name: 'Holder', text: row => row.lease?.owner ?? '', width: 'minmax(5rem, 1.2fr)' },
  { name: 'Since', text: row => (row.lease ? clock(Date.now() - row.lease.held_ms - since(source)) : ''), sort: row => -(row.lease?.held_ms ?? -1), width: '6.5rem' },
  { name: 'Ends in', text: row => (row.lease ? span(left(row.lease, source)) : ''), sort: row => row.lease?.expires_in_ms ?? -1, width: '6.5rem' },
  { name: 'Reason', text: row => row.lease?.reason ?? row.quarantine?.reason ?? '', width: 'minmax(6rem, 1.6fr)' },
  { name: 'Site', text: row => row.lease?.site ?? '' },
];

export const WINDOWS = { '10 min': 6e5, '1 h': 36e5, '24 h': 864e5, '7 d': 6048e5 };

const spans = (row, now) => {
  const all = [...row.past];
  if (row.lease) all.push({ from: now - row.lease.held_ms, to: now, owner: row.lease.owner, reason: row.lease.reason, end: row.lease.state });
  return all;
};
const say = it => `${it.owner ?? 'no owner'}${it.reason ? ` (${it.reason})` : ''}, ${clock(it.from)} to ${it.end === 'live' ? 'now' : `${clock(it.to)}, ${it.end}`}`;

// The leases of a unit as boxes on a line from the past to now.
function track(cell, row, source) {
  const now = Date.now();
  const from = now - WINDOWS[source.window];
  const inside = spans(row, now).filter(it => it.to >= from);
  const box = cell.firstChild ?? cell.appendChild(element('div', { class: 'track', role: 'img' }));
  const label = `${row.unit}: ${plural(inside.length, 'lease')} in ${source.window}. ${inside.slice(-5).map(say).join('; ')}`;
  const drawn = `${row.unit} ${source.window} ${source.received} ${row.past.length}`;
  if (box.drawn === drawn) return;
  box.drawn = drawn;
  box.setAttribute('aria-label', label);
  box.replaceChildren(...inside.map(it => {
    const segment = element('i', { title: say(it), class: ['live', 'released'].includes(it.end) ? '' : 'bad' }, it.owner ?? '');
    const begin = Math.max(it.from, from);
    segment.style.left = `${100 * (begin - from) / (now - from)}%`;
    segment.style.width = `max(3px, ${100 * (it.to - begin) / (now - from)}%)`;
    return segment;
  }));
}

const timelineColumns = source => [
  { name: 'Unit', text: row => row.unit, width: 'minmax(5rem, 9rem)', main: true },
  { name: 'State', text: state, width: '7rem', main: true },
  { name: 'Leases', text: row => spans(row, Date.now()).map(it => it.owner ?? '').join(' '), draw: (cell, row) => track(cell, row, source), width: '1fr' },
];

const eventColumns = [
  { name: 'Time', text: row => clock(row.at_ms), sort: row => row.at_ms, width: '6.5rem', main: true },
  { name: 'Event', text: row => row.event, width: '7rem', main: true },
  { name: 'Units', text: row => units(row.units) || want(row.want), width: 'minmax(7rem, 1.5fr)' },
  { name: 'Owner', text: row => row.owner ?? '', width: 'minmax(5rem, 1fr)' },
  { name: 'Waited', text: row => span(row.waited_ms), sort: row => row.waited_ms ?? -1, width: '5.5rem' },
  { name: 'Held', text: row => span(row.held_ms), sort: row => row.held_ms ?? -1, width: '5.5rem' },
  { name: 'Cause', text: row => row.cause ?? row.reason ?? '', width: 'minmax(6rem, 1.5fr)' },
  { name: 'Site', text: row => row.site },
];
const BAD = ['expired', 'failed', 'held', 'quarantined', 'suspended', 'departed', 'peer-reset'];

const semaphoreColumns = [
  { name: 'Semaphore', text: row => row.name, width: 'minmax(8rem, 2fr)', main: true },
  { name: 'Value', text: row => row.value, num: true, main: true },
  { name: 'Waiting', text: row => row.waiting, num: true },
  { name: 'Next', text: row => (row.head ? `${row.head.owner ?? row.head.site} wants ${row.head.k}, ${row.head.missing} missing` : ''), width: 'minmax(8rem, 2fr)' },
  { name: 'Uncertain', text: row => (row.unsure ?? []).join(', '), width: 'minmax(5rem, 1fr)' },
  { name: 'Protocol', text: row => row.protocol, width: 'minmax(6rem, 1fr)' },
];

const gangColumns = [
  { name: 'Gang', text: row => row.name, width: 'minmax(7rem, 1fr)', main: true },
  { name: 'State', text: row => row.state, width: '7rem', main: true },
  { name: 'Members', text: row => Object.entries(row.members).map(([site, it]) => `${site} ${want(it)}`).join(', '), width: 'minmax(8rem, 4fr)' },
];

const siteState = row => (row.member ? (SITE_STATE[row.state] ?? row.state) + (row.draining ? ', drained' : '') : 'not a member');
const siteColumns = [
  { name: 'Site', text: row => row.site, width: 'minmax(5rem, 1fr)', main: true },
  { name: 'State', text: siteState, width: 'minmax(6rem, 1.2fr)', main: true },
  { name: 'Problem', text: row => row.trouble ?? '', width: 'minmax(6rem, 3fr)' },
  { name: 'Address', text: row => row.address, width: 'minmax(8rem, 1.5fr)' },
  { name: 'Incarnation', text: row => row.incarnation ?? '', num: true, width: '6.5rem' },
  { name: 'Epoch', text: row => row.epoch, num: true },
];

const request = row => `request/${encodeURIComponent(row.id)}`;

// Lists by their place in the address, after `#/`.
export const VIEWS = {
  pools: () => {
    const source = new Pools();
    return {
      source, columns: poolColumns, key: row => row.name, open: row => `pool/${encodeURIComponent(row.name)}`,
      tone: row => (row.quarantined ? 'warn' : row.held || row.waiting ? '' : 'idle'),
      empty: 'There are no pools. `kofm pool set NAME --units M` creates one.', noun: 'pool', on: event => source.touch(event) ?? true,
    };
  },
  queue: query => {
    const source = new Paged('queue', query);
    return { source, columns: queueColumns(source), key: row => row.id, open: request, empty: 'No request waits.', noun: 'waiting request', on: it => QUEUE.includes(it.event) };
  },
  leases: query => {
    const source = new Paged('leases', query);
    return {
      source, columns: leaseColumns(source), key: row => row.request, open: row => `lease/${encodeURIComponent(row.request)}`,
      tone: row => (row.state === 'live' ? '' : 'warn'), empty: 'No unit is held.', noun: 'lease', on: it => LEASES.includes(it.event),
    };
  },
  semaphores: () => ({ source: new Whole('/v1/semaphores'), columns: semaphoreColumns, key: row => row.name, empty: 'There are no semaphores.', noun: 'semaphore', on: it => ['semaphore', 'taken', 'added', 'epoch'].includes(it.event) }),
  gangs: () => ({ source: new Whole('/v1/gangs'), columns: gangColumns, key: row => row.name, empty: 'There are no gangs.', noun: 'gang', on: () => true }),
  sites: () => ({
    source: new Whole('/v1/members'), columns: siteColumns, key: row => row.site, open: row => ({ site: row, state: siteState(row) }), empty: 'There are no sites.', noun: 'site',
    tone: row => (row.member && !row.trouble && ['self', 'up'].includes(row.state) ? '' : 'warn'), on: it => ['epoch', 'peer-reset', 'suspended', 'departed'].includes(it.event),
  }),
  history: query => ({
    source: new Events(query), columns: eventColumns, key: row => `${row.site} ${row.seq} ${row.at_ms}`,
    tone: row => (BAD.includes(row.event) ? 'warn' : ''), empty: 'There are no events.', noun: 'event', on: () => true,
  }),
};

const concerns = name => event => event.event === 'pool' || event.event === 'epoch' || name in { ...event.want, ...event.units };

// The parts of one pool's page.
export const POOL_VIEWS = {
  units: name => {
    const source = new OnePool(name, false);
    return { source, columns: unitColumns(source), key: row => row.unit, open: row => ({ unit: row }), tone, empty: 'The pool has no units.', noun: 'unit', on: concerns(name) };
  },
  timeline: name => {
    const source = Object.assign(new OnePool(name, true), { window: '1 h' });
    return { source, columns: timelineColumns(source), key: row => row.unit, open: row => ({ unit: row }), tone, empty: 'The pool has no units.', noun: 'unit', on: concerns(name), windows: true };
  },
  queue: name => ({ ...VIEWS.queue(`&pool=${encodeURIComponent(name)}`), on: concerns(name) }),
  history: name => ({ ...VIEWS.history(`&pool=${encodeURIComponent(name)}`), on: concerns(name) }),
};
