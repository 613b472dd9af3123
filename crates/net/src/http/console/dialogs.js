// Details of a row, and the actions on it, each with a confirmation.

import { ApiError, call, read, setToken, token } from './api.js';
import { element } from './list.js';
import { may, mayCancel, mayRelease } from './rights.js';
import { LEASE_STATE, blocker, clock, plural, span, units, want } from './text.js';

const dialog = document.getElementById('dialog');
const toast = document.getElementById('toast');
let hidden = null;

export function tell(text) {
  toast.textContent = text;
  clearTimeout(hidden);
  hidden = setTimeout(() => { toast.textContent = ''; }, 6000);
}

const button = (text, click, kind) => element('button', { type: 'button', class: kind, click }, text);
const closing = (text = 'Close') => button(text, () => dialog.close());

function facts(list) {
  const pairs = list.filter(([, value]) => value != null && value !== '');
  return element('dl', {}, ...pairs.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]));
}

function show(title, ...content) {
  dialog.replaceChildren(element('h2', { id: 'dialog-title' }, title), ...content.filter(Boolean));
  if (!dialog.open) dialog.showModal();
}

// Asks before an action, and says how it ended.
function confirm({ title, text, verb, fields = [], work, done }) {
  const fault = element('p', { class: 'fault', role: 'alert' });
  const inputs = fields.flatMap(field => [element('label', { for: field.input.id }, field.label), field.input]);
  const go = element('button', { type: 'submit', class: 'danger' }, verb);
  const form = element('form', { method: 'dialog', novalidate: '', submit: async event => {
    event.preventDefault();
    go.disabled = true;
    fault.textContent = '';
    try {
      await work();
      dialog.close();
      tell(done);
      document.dispatchEvent(new Event('changed'));
    } catch (error) {
      fault.textContent = error.message;
    }
    go.disabled = false;
  } }, element('p', {}, text), ...inputs, fault, element('div', { class: 'buttons' }, closing('Keep as it is'), go));
  show(title, form);
  (fields[0]?.input ?? form.querySelector('.buttons button')).focus();
}

const leasePath = lease => `/v1/leases/${encodeURIComponent(lease.name ?? lease.id)}`;

function release(lease) {
  const holder = lease.owner ?? 'the holder';
  confirm({
    title: 'Release this lease?',
    text: `${holder} loses ${units(lease.units)}. \`kofm run\` stops its command; other programs may go on using the units until they notice.`,
    verb: 'Release', done: 'Released.',
    work: () => call('DELETE', leasePath(lease)),
  });
}

function cancel(request) {
  confirm({
    title: 'Cancel this request?',
    text: `${request.owner ?? 'The client'} no longer waits for ${want(request.want)}. Its command is not started.`,
    verb: 'Cancel the request', done: 'Cancelled.',
    work: () => call('DELETE', `/v1/requests/${encodeURIComponent(request.id)}`),
  });
}

const unitPath = row => `/v1/pools/${encodeURIComponent(row.pool)}/quarantine/${encodeURIComponent(row.unit)}`;

function quarantine(row) {
  const input = element('input', { id: 'reason', maxlength: 200, autocomplete: 'off' });
  confirm({
    title: `Quarantine ${row.unit}?`,
    text: row.lease ? 'The holder keeps the unit. It is not granted again after its release.' : 'The unit is not granted until it is returned to service.',
    fields: [{ label: 'Reason, shown to others', input }],
    verb: 'Quarantine', done: `${row.unit} is quarantined.`,
    work: () => {
      if (!input.value.trim()) throw new Error('Write a reason.');
      return call('PUT', unitPath(row), { reason: input.value.trim() });
    },
  });
}

function giveBack(row) {
  confirm({
    title: `Return ${row.unit} to service?`,
    text: `It is quarantined: ${row.quarantine.reason}. After the return it can be granted again.`,
    verb: 'Return', done: `${row.unit} is in service.`,
    work: () => call('DELETE', unitPath(row)),
  });
}

export function resize(pool) {
  const named = (pool.names ?? []).length > 0;
  const value = named ? pool.names.join(', ') : String(pool.units);
  const input = element('textarea', { id: 'size', rows: named ? 5 : 1, spellcheck: 'false' });
  input.value = value;
  confirm({
    title: `Resize ${pool.name}`,
    text: 'Units that are held leave a smaller pool when they are released.',
    fields: [{ label: named ? 'Names of all units, separated by commas' : 'Number of units', input }],
    verb: 'Resize', done: `${pool.name} is resized.`,
    work: () => {
      const names = input.value.split(/[\s,]+/).filter(Boolean);
      const count = Number(input.value);
      if (!named && !(Number.isInteger(count) && count > 0)) throw new Error('The number of units must be at least 1.');
      return call('PUT', `/v1/pools/${encodeURIComponent(pool.name)}`, { units: named ? names : count });
    },
  });
}

export function showUnit(row) {
  const { lease } = row;
  const state = lease ? LEASE_STATE[lease.state] ?? lease.state : row.quarantine ? 'quarantined' : 'not held';
  show(`Unit ${row.unit} of ${row.pool}`, facts([
    ['State', state], ['Quarantine', row.quarantine?.reason], ['Holder', lease?.owner], ['Reason', lease?.reason],
    ['Since', lease && clock(Date.now() - lease.held_ms)], ['Ends', lease && `in ${span(lease.expires_in_ms)}, if it is not renewed`],
    ['Site', lease?.site], ['Fence', lease?.fence],
  ]), element('div', { class: 'buttons' },
    lease && mayRelease(lease) ? button('Release the lease…', () => release(lease), 'danger') : null,
    may('operate', [row.pool]) ? row.quarantine ? button('Return to service…', () => giveBack(row)) : button('Quarantine…', () => quarantine(row)) : null,
    closing()));
}

export function showLease(lease) {
  show('Lease', facts([
    ['Units', units(lease.units)], ['Owner', lease.owner], ['Reason', lease.reason], ['State', LEASE_STATE[lease.state] ?? lease.state],
    ['Since', clock(Date.now() - lease.held_ms)], ['Ends', lease.state === 'live' ? `in ${span(lease.expires_in_ms)}, if it is not renewed` : null],
    ['Principal', lease.principal], ['Fence', lease.fence], ['Site', lease.site], ['Epoch', lease.epoch], ['Request', lease.request],
  ]), element('div', { class: 'buttons' }, mayRelease(lease) ? button('Release…', () => release(lease), 'danger') : null, closing()));
}

export function showRequest(request) {
  const blockers = request.blocked_by.map(it => element('li', {}, blocker(it)));
  show('Request', facts([
    ['Wants', want(request.want)], ['Owner', request.owner], ['Reason', request.reason], ['State', request.state], ['Place', request.position],
    ['Waited', span(request.waited_ms)], ['Cause', request.cause], ['Principal', request.principal], ['Site', request.site], ['Request', request.id],
  ]), blockers.length ? element('p', {}, `Blocked by ${plural(blockers.length, 'cause')}:`) : null, blockers.length ? element('ul', {}, ...blockers) : null,
  element('div', { class: 'buttons' }, request.state === 'queued' && mayCancel(request) ? button('Cancel the request…', () => cancel(request), 'danger') : null, closing()));
}

const memberPath = (row, change) => `/v1/members/${encodeURIComponent(row.site)}/${change}`;

function drain(row) {
  confirm({
    title: `Drain ${row.site}?`,
    text: 'The site takes no new requests, and requests that wait at it end. Its leases stay until they end.',
    verb: 'Drain', done: `${row.site} takes no new requests.`,
    work: () => call('POST', memberPath(row, 'drain')),
  });
}

function undrain(row) {
  confirm({
    title: `Take ${row.site} back?`,
    text: 'The site accepts requests again.',
    verb: 'Take back', done: `${row.site} accepts requests.`,
    work: () => call('POST', memberPath(row, 'undrain')),
  });
}

export function showSite(row, state) {
  show(`Site ${row.site}`, facts([
    ['State', state], ['Problem', row.trouble], ['Voter', row.voter ? 'yes' : 'no'], ['New requests', row.draining ? 'refused: it is drained' : 'accepted'],
    ['Address', row.address], ['Incarnation', row.incarnation], ['Epoch', row.epoch], ['Messages that wait for it', row.unacknowledged],
  ]), element('div', { class: 'buttons' },
    may('admin', ['*']) ? row.draining ? button('Take back…', () => undrain(row)) : button('Drain…', () => drain(row), 'danger') : null,
    closing()));
}

export async function openRequest(id) {
  showRequest((await read(`/v1/requests/${encodeURIComponent(id)}`)).value);
}

// Asks for the token of a cluster with principals.
export function signIn(text) {
  if (dialog.open && document.getElementById('token')) return;
  const input = element('input', { id: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false' });
  const fault = element('p', { class: 'fault', role: 'alert' }, text ?? '');
  const submit = event => {
    event.preventDefault();
    setToken(input.value.trim());
    dialog.close();
    document.dispatchEvent(new Event('signed'));
  };
  show('Token', element('form', { method: 'dialog', submit },
    element('p', {}, 'The token of a principal, as `kofm token create NAME` prints it. It is kept until this tab is closed.'),
    element('label', { for: 'token' }, 'Token'), input, fault,
    element('div', { class: 'buttons' }, token() ? button('Forget the token', event => { input.value = ''; submit(event); }) : null, closing(), element('button', { type: 'submit' }, 'Use'))));
  input.focus();
}

const KEYS = [['1 – 7', 'choose a list'], ['/', 'filter'], ['↑ ↓ PgUp PgDn Home End', 'move in the list'], ['Enter', 'open the row'], ['Esc', 'close, clear the filter, or go back'], ['?', 'these keys']];

export function showKeys() {
  const pairs = KEYS.flatMap(([keys, text]) => [element('dt', {}, element('kbd', {}, keys)), element('dd', {}, text)]);
  show('Keys', element('dl', {}, ...pairs), element('div', { class: 'buttons' }, closing()));
}

export const isSignedOut = error => error instanceof ApiError && error.status === 401;
