// Lists of the site, and when an event makes them out of date.

import { read } from './api.js';

const PAGE = 500;
const MOST_IN_A_PAGE = 1000;
// More pools than this are read again all together.
const FEW = 8;

// A list that is read as a whole.
export class Whole {
  constructor(path) {
    Object.assign(this, { path, rows: [], missing: [], more: false, received: 0 });
  }

  async refresh() {
    const { value, missing, received } = await read(this.path);
    Object.assign(this, { rows: value, missing, received });
  }
}

// All pools; after an event only those that it names.
export class Pools extends Whole {
  constructor() {
    super('/v1/pools');
    this.touched = new Set();
    this.stale = true;
  }

  touch(event) {
    const names = Object.keys({ ...event.want, ...event.units });
    if (!['queued', 'granted', 'released', 'cancelled', 'expired', 'failed', 'held'].includes(event.event)) this.stale = true;
    for (const name of names) this.touched.add(name);
  }

  async refresh(full) {
    const names = [...this.touched];
    this.touched.clear();
    if (full || this.stale || names.length > FEW) {
      this.stale = false;
      await super.refresh();
      return;
    }
    for (const name of names.filter(it => !it.startsWith('@'))) {
      const place = this.rows.findIndex(row => row.name === name);
      const { value } = await read(`/v1/pools/${encodeURIComponent(name)}`);
      if (place >= 0) this.rows[place] = value;
      else this.stale = true;
    }
  }
}

// A list that is read page by page, as far as it is looked at.
export class Paged {
  constructor(name, query = '') {
    Object.assign(this, { name, query, rows: [], missing: [], more: false, next: null, received: 0, busy: false });
  }

  async page(limit, after) {
    const cursor = after ? `&after=${after}` : '';
    const { value, missing, received } = await read(`/v1/${this.name}?limit=${limit}${cursor}${this.query}`);
    return { rows: value[this.name], next: value.next ?? null, missing, received };
  }

  // Reads as many rows again as there are.
  async refresh() {
    const count = Math.max(PAGE, this.rows.length);
    const rows = [];
    let page = null;
    do {
      page = await this.page(Math.min(MOST_IN_A_PAGE, count - rows.length), page?.next);
      rows.push(...this.ordered(page.rows));
    } while (page.next && rows.length < count);
    Object.assign(this, { rows, next: page.next, more: !!page.next, missing: page.missing, received: page.received });
  }

  ordered(rows) {
    return rows;
  }

  // Reads the next page; or all, for a filter or an order of the reader's.
  async extend(all) {
    if (this.busy || !this.more) return false;
    this.busy = true;
    try {
      do {
        const page = await this.page(MOST_IN_A_PAGE, this.next);
        this.rows = [...this.rows, ...this.ordered(page.rows)];
        Object.assign(this, { next: page.next, more: !!page.next });
      } while (all && this.more);
    } finally {
      this.busy = false;
    }
    return true;
  }
}

// Events, the newest first; each page is earlier than the one before.
export class Events extends Paged {
  constructor(query) {
    super('history', query);
  }

  ordered(rows) {
    return rows.toReversed();
  }
}

// One pool with its leases, and with its events for the timeline.
export class OnePool {
  constructor(name, withEvents) {
    Object.assign(this, { name, withEvents, rows: [], missing: [], more: false, pool: null, leases: [], events: [], received: 0 });
  }

  async refresh() {
    const name = encodeURIComponent(this.name);
    const leases = new Paged('leases', `&pool=${name}`);
    const [pool] = await Promise.all([read(`/v1/pools/${name}`), leases.refresh()]);
    await leases.extend(true);
    this.pool = pool.value;
    this.leases = leases.rows;
    this.received = leases.received;
    this.missing = leases.missing;
    if (this.withEvents) {
      const events = await read(`/v1/history?limit=${MOST_IN_A_PAGE}&pool=${name}`);
      this.events = events.value.history;
    }
    this.rows = unitsOf(this);
  }
}

// Units of a pool that are listed one by one.
const MOST_UNITS = 100_000;

// Each unit by its name: its lease, its quarantine, and its former leases.
function unitsOf({ name, pool, leases, events }) {
  const units = new Map();
  const unit = id => {
    if (!units.has(id)) units.set(id, { unit: id, pool: name, lease: null, quarantine: null, past: [] });
    return units.get(id);
  };
  const names = pool.names ?? Array.from({ length: Math.min(pool.units, MOST_UNITS) }, (_, number) => String(number));
  names.forEach(unit);
  for (const lease of leases) for (const id of lease.units[name] ?? []) unit(id).lease = lease;
  for (const it of pool.quarantine ?? []) unit(it.unit).quarantine = it;
  for (const event of events) {
    if (event.held_ms == null) continue;
    const span = { from: event.at_ms - event.held_ms, to: event.at_ms, owner: event.owner, reason: event.reason, end: event.event };
    for (const id of event.units?.[name] ?? []) unit(id).past.push(span);
  }
  return [...units.values()];
}
