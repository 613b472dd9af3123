// Texts for people: durations, times, demands and units.

export function span(ms) {
  if (ms == null) return '';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(at) {
  const date = new Date(at);
  const time = date.toLocaleTimeString();
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

// Pools whose names begin with @ are internal: each is the place of a gang's member.
const shown = map => Object.entries(map ?? {}).filter(([name]) => !name.startsWith('@'));
export const want = map => shown(map).map(([pool, k]) => `${pool}:${k}`).join(' ');
export const units = map => shown(map).map(([pool, list]) => `${pool} ${brief(list)}`).join('; ');

const MOST = 12;
function brief(list) {
  return list.length > MOST ? `${list.slice(0, MOST).join(', ')} and ${list.length - MOST} more` : list.join(', ');
}

export const plural = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;

export function blocker(it) {
  const owner = (it.owner ?? 'an unknown owner') + (it.reason ? ` (${it.reason})` : '');
  const amount = `${plural(it.units, 'unit')} of ${it.pool}`;
  if (it.state === 'held') return `${owner} holds ${amount} at ${it.site}`;
  if (it.state === 'queued') return `${owner} is ahead and wants ${amount} at ${it.site}`;
  if (it.state === 'unanswered') return `site ${it.site} has not answered about ${it.pool}`;
  return `an earlier claim of site ${it.site} counts ${amount}`;
}

export const SITE_STATE = {
  self: 'this site', up: 'up', away: 'no connection', refused: 'refused until the next epoch',
};

export const LEASE_STATE = {
  live: 'held', held: 'expired, held until released', quarantined: 'expired, quarantined until released',
};
