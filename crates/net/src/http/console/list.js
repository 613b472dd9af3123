// A list of any length: only the rows in view are in the document.

const NARROW = matchMedia('(max-width: 44rem)');
const HIGH = { wide: 36, narrow: 60 };
const BEYOND = 6;

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null) continue;
    if (key === 'class') node.className = value;
    else if (typeof value === 'function') node.addEventListener(key, value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter(it => it != null));
  return node;
}

function compare(a, b) {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a ?? '').localeCompare(String(b ?? ''), 'en', { numeric: true });
}

// A column: name; text(row); and if needed sort(row), draw(cell, row), width, num, code, main.
export class List {
  constructor({ label, columns, key, open, tone, empty, atEnd }) {
    Object.assign(this, { columns, key, open, tone, empty, atEnd });
    this.all = [];
    this.rows = [];
    this.filter = '';
    this.sorting = null;
    this.active = 0;
    this.slots = [];
    this.heads = columns.map(column => this.heading(column));
    this.head = element('div', { class: 'head row', role: 'row' }, ...this.heads);
    this.space = element('div');
    this.body = element('div', { class: 'body', role: 'rowgroup' }, this.space);
    this.element = element('div', { class: 'list', role: 'grid', 'aria-label': label, 'aria-colcount': columns.length }, this.head, this.body);
    this.head.style.gridTemplateColumns = this.template();
    this.body.addEventListener('scroll', () => this.draw(), { passive: true });
    this.body.addEventListener('keydown', event => this.press(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.body);
  }

  end() {
    this.sizes.disconnect();
  }

  template() {
    return this.columns.map(column => column.width ?? 'minmax(3.5rem, 1fr)').join(' ');
  }

  heading(column) {
    const button = element('button', { type: 'button', click: () => this.sortBy(column) }, column.name);
    return element('div', { class: column.num ? 'num' : '', role: 'columnheader' }, button);
  }

  sortBy(column) {
    const [current, reverse] = this.sorting ?? [];
    this.sorting = current !== column ? [column, false] : reverse ? null : [column, true];
    this.columns.forEach((it, place) => {
      const sorted = this.sorting?.[0] === it;
      this.heads[place].setAttribute('aria-sort', !sorted ? 'none' : this.sorting[1] ? 'descending' : 'ascending');
      this.heads[place].firstChild.textContent = it.name + (!sorted ? '' : this.sorting[1] ? ' ↓' : ' ↑');
    });
    this.arrange();
    this.changed?.();
  }

  set(rows) {
    this.all = rows;
    this.arrange();
  }

  arrange() {
    const active = this.rows[this.active];
    const filter = this.filter.toLowerCase();
    const fits = row => this.columns.some(column => String(column.text(row) ?? '').toLowerCase().includes(filter));
    this.rows = filter ? this.all.filter(fits) : [...this.all];
    if (this.sorting) {
      const [column, reverse] = this.sorting;
      const value = column.sort ?? column.text;
      this.rows.sort((a, b) => compare(value(a), value(b)) * (reverse ? -1 : 1));
    }
    const place = active === undefined ? -1 : this.rows.findIndex(row => this.key(row) === this.key(active));
    this.active = Math.max(0, place >= 0 ? place : Math.min(this.active, this.rows.length - 1));
    this.draw();
  }

  draw() {
    const high = NARROW.matches ? HIGH.narrow : HIGH.wide;
    this.head.style.paddingRight = `calc(.9rem + ${this.body.offsetWidth - this.body.clientWidth}px)`;
    const focused = this.body.contains(document.activeElement) && document.activeElement !== this.body;
    this.space.style.height = `${this.rows.length * high}px`;
    this.element.setAttribute('aria-rowcount', this.rows.length + 1);
    const first = Math.max(0, Math.floor(this.body.scrollTop / high) - BEYOND);
    const count = Math.min(this.rows.length - first, Math.ceil(this.body.clientHeight / high) + 2 * BEYOND);
    while (this.slots.length < count) this.slots.push(this.slot());
    while (this.slots.length > Math.max(0, count)) this.slots.pop().remove();
    this.slots.forEach((slot, offset) => this.fill(slot, first + offset, high));
    if (this.rows.length === 0) {
      this.note ??= element('p', { class: 'empty' });
      this.note.textContent = this.filter && this.all.length ? 'No row contains the filter.' : this.empty;
      this.space.append(this.note);
    } else if (this.note) {
      this.note.remove();
    }
    const slot = this.slots[this.active - first];
    if (focused && slot) slot.focus({ preventScroll: true });
    if (first + count >= this.rows.length) this.atEnd?.();
  }

  slot() {
    const cells = this.columns.map(column => element('div', {
      class: `cell${column.num ? ' num' : ''}${column.code ? ' code' : ''}${column.draw ? ' art' : ''}`,
      role: 'gridcell',
      'data-label': column.name.toLowerCase(),
    }));
    const group = (name, main) => element('div', { class: name, role: 'none' }, ...cells.filter((_, place) => !!this.columns[place].main === main));
    const slot = element('div', {
      class: 'row',
      role: 'row',
      click: () => this.go(slot.place, true),
      focus: () => { this.active = slot.place; },
    }, group('first', true), group('rest', false));
    slot.cells = cells;
    slot.style.gridTemplateColumns = this.template();
    this.space.append(slot);
    return slot;
  }

  fill(slot, place, high) {
    const row = this.rows[place];
    slot.place = place;
    slot.style.height = `${high}px`;
    slot.style.transform = `translateY(${place * high}px)`;
    slot.setAttribute('aria-rowindex', place + 2);
    slot.tabIndex = place === this.active ? 0 : -1;
    slot.className = `row ${this.open ? 'opens' : ''} ${this.tone?.(row) ?? ''}`;
    this.columns.forEach((column, number) => {
      const cell = slot.cells[number];
      if (column.draw) {
        column.draw(cell, row);
        return;
      }
      const text = String(column.text(row) ?? '');
      if (cell.textContent !== text) {
        cell.textContent = text;
        cell.title = text;
      }
    });
  }

  // Makes a row the active one, and opens it.
  go(place, open) {
    this.active = Math.max(0, Math.min(place, this.rows.length - 1));
    if (open) this.open?.(this.rows[this.active]);
  }

  press(event) {
    const high = NARROW.matches ? HIGH.narrow : HIGH.wide;
    const page = Math.max(1, Math.floor(this.body.clientHeight / high) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === 'Enter') {
      this.go(this.active, true);
    } else if (event.key in steps) {
      this.go(this.active + steps[event.key]);
      const top = this.active * high;
      if (top < this.body.scrollTop) this.body.scrollTop = top;
      const low = top + high - this.body.clientHeight;
      if (low > this.body.scrollTop) this.body.scrollTop = low;
      this.draw();
      this.slots.find(slot => slot.place === this.active)?.focus({ preventScroll: true });
    } else {
      return;
    }
    event.preventDefault();
  }

  focus() {
    this.slots.find(slot => slot.place === this.active)?.focus();
  }
}
